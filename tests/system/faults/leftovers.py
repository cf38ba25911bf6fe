"""What an installation left behind and should not have, once everything has ended and the garbage was collected."""

from pathlib import Path

import sqlalchemy as sa
from tests.system.faults.setup import InstallationSetup

from giornata.agent.work_dir import CACHE_DIRECTORY, MODEL_DIRECTORY, WorkDir
from giornata.cli.operate.composition import open_control_plane
from giornata.cli.settings import Settings
from giornata.control.storage.collect import collect
from giornata.domain.generation.picture import picture_key
from giornata.store import schema

PICTURES_WITH_A_FILE = sa.select(schema.pictures).where(schema.pictures.c.sha256.is_not(None))
REFERRERS = (schema.dataset_items, schema.checkpoints, schema.artifacts, schema.caches)


def left_in_storage(data: Path, setup: InstallationSetup) -> list[str]:
    """Leases, uploads and bytes that are still there once the garbage was collected. No server may be running."""
    settings = Settings(data=data, garbage_after_s=0, **setup.settings())
    with open_control_plane(settings, base_url=lambda: "http://127.0.0.1") as rig:
        collect(rig.context)
        again = collect(rig.context)
        left = [f"garbage after collecting: {again}"] if again else []
        with rig.context.store.read() as tx:
            ask = tx.connection.execute
            open_attempts = sa.select(schema.attempts.c.id).where(schema.attempts.c.ended_at_ms.is_(None))
            left += [f"attempt {row.id} has not ended" for row in ask(open_attempts)]
            left += [f"upload {row.id}" for row in ask(sa.select(schema.uploads.c.id))]
            known = {row.key for row in ask(sa.select(schema.blobs.c.key))}
            hashes = {row.sha256 for row in ask(sa.select(schema.blobs.c.sha256))}
            drawn = {picture_key(row.project_id, row.lease, row.sha256) for row in ask(PICTURES_WITH_A_FILE)}
            wanted = {row.sha256 for table in REFERRERS for row in ask(sa.select(table.c.sha256))}
            # A model may be known without its bytes, which are fetched again when they are needed.
            wanted |= hashes & {row.sha256 for row in ask(sa.select(schema.models.c.sha256))}
    known |= drawn
    stored = setup.storage(data).contents()
    left += [f"{name} is in storage" for name in stored if not any(name.endswith(key) for key in known)]
    left += [f"{len(stored)} objects for {len(known)} blobs"] if len(stored) != len(known) else []
    return left + [f"blob {sha256} belongs to nobody" for sha256 in hashes ^ wanted]


def left_on_disk(work_dir: Path) -> list[str]:
    """Files that are not shared by leases, once the next process of the node has been there."""
    WorkDir(work_dir).close()
    hidden = [path for path in (work_dir / "cache").rglob(".*") if path.is_file()]
    shared = {work_dir / CACHE_DIRECTORY, work_dir / MODEL_DIRECTORY}
    others = [path for path in work_dir.rglob("*") if path.is_file() and shared.isdisjoint(path.parents)]
    return [f"{path} is on the node's disk" for path in (*hidden, *others)]
