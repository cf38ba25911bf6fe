"""What has to be true once everything has come to rest: looked for in the real database and the real storage."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.contract.model.invariants import REFERRERS, InvariantChecker
from tests.contract.model.memory_blobs import Kept
from tests.contract.model.model_rig import WATCHED
from tests.contract.model.written import WrittenTables
from tests.system.conftest import SECRETS_KEY
from tests.system.soak.installation import SoakInstallation
from tests.system.soak.training import WEIGHTS
from tests.system.soak.users import Book, counted

from giornata.cli.operate.composition import open_control_plane
from giornata.cli.settings import Settings
from giornata.control.context import Context
from giornata.control.storage.collect import collect
from giornata.domain.errors import BlobMissing
from giornata.domain.jobs.reasons import Reason

CRASHED_MACHINES, FRUITLESS = 3, 10
SERVER_ERROR = re.compile(r'"status": ?500')


@dataclass(slots=True)
class RealStorage:
    """Objects as they lie in storage, read when they are asked for."""

    ctx: Context
    changes: int = 0
    objects: dict[str, Kept] = field(init=False)

    def __post_init__(self) -> None:
        self.objects = {}
        for found in self.ctx.blobs.list(""):
            with suppress(BlobMissing):
                data = b"".join(self.ctx.blobs.read(found.key))
                sha256 = self.ctx.blobs.digest(found.key).sha256
                self.objects[found.key] = Kept(data=data, sha256=sha256, modified_at=found.modified_at)


class RealInstallation:
    """What a `InvariantChecker` of the model wants to look at."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.store: Any = ctx.store
        self.blobs = RealStorage(ctx)
        self.written = WrittenTables(frozenset({*WATCHED, "events"}))
        self.harmed: frozenset[tuple[str, str]] = frozenset()  # bytes are spoiled on their way, never where they lie
        self.clock = ctx.clock
        self.retained: frozenset[str] = frozenset()  # no project has retention here
        self.is_set_back = False


def findings(
    installation: SoakInstallation, book: Book, reference: Mapping[str, str]
) -> tuple[list[str], dict[str, int]]:
    """Everything that is not as it must be, and how many jobs ended how. No server may be running.

    `reference` has the sha256 of each file of weights of an undisturbed training, by name.
    """
    settings = Settings(
        data=installation.servers[0].data,
        database=installation.postgres.url,
        blobs=f"file://{installation.blobs}",
        secrets_key=SECRETS_KEY,
        garbage_after_s=0,
    )
    found = [f"{server.name} answered 500" for server in installation.servers if _failed(server.log)]
    with open_control_plane(settings, base_url=lambda: "http://127.0.0.1") as rig:
        collect(rig.context)
        again = collect(rig.context)
        found += [f"garbage after collecting: {again}"] if again else []
        real = RealInstallation(rig.context)
        checker = InvariantChecker(real)  # type: ignore[arg-type]
        try:
            checker.look(whole=True)
        except AssertionError as broken:
            found.append(f"an invariant: {broken}"[:4000])
        found += list(_bytes(checker, real.blobs))
        jobs = {row.id: row for row in checker.now.jobs}
        found += list(_jobs_of(book, jobs, checker))
        found += list(_results(checker, real.blobs, reference))
    states: dict[str, int] = {}
    for row in jobs.values():
        states[row.state] = states.get(row.state, 0) + 1
    return found, states


def _failed(log: Any) -> bool:
    return SERVER_ERROR.search(log.read_text(errors="replace")) is not None


def _bytes(checker: InvariantChecker, storage: RealStorage) -> Iterator[str]:
    """Nothing lies in storage that no row names, no row names what is not there, and all is what it says."""
    seen = checker.now
    keys = {row.key for row in seen.blobs}
    yield from (f"{key} is in storage and in no row" for key in storage.objects.keys() - keys)
    yield from (f"{key} is in a row and not in storage" for key in keys - storage.objects.keys())
    referred = {(row.project_id, row.sha256) for table in REFERRERS for row in seen.tables[table]}
    had = {(row.project_id, row.sha256) for row in seen.blobs}
    yield from (f"{it} belongs to nobody" for it in had - referred)
    yield from (f"upload {row.id} is left" for row in seen.uploads)


def _jobs_of(book: Book, jobs: Mapping[str, Any], checker: InvariantChecker) -> Iterator[str]:
    tries: dict[str, list[Any]] = {}
    for row in checker.now.attempts:
        tries.setdefault(row.job_id, []).append(row)
    yield from (f"{job_id} was acknowledged and is lost" for job_id in book.asked - jobs.keys())
    for job_id, row in jobs.items():
        if job_id not in book.asked and row.retry_of is None:
            yield f"{job_id} was asked for by nobody"
        if (told := book.ended.get(job_id)) is not None and told != row.state:
            yield f"{job_id}: its user was told {told}, and it is {row.state}"
        if job_id in book.surely_canceled and row.state != "canceled":
            yield f"{job_id}: was canceled, and is {row.state}"
        attempts = sorted(tries.get(job_id, []), key=lambda it: it.number)
        if not _expected(row, attempts, canceled=job_id in book.canceled):
            yield f"{job_id} is {row.state} for no reason: {row.error}, {[it.reason for it in attempts]}"


def _expected(row: Any, attempts: list[Any], *, canceled: bool) -> bool:
    """Whether its user could expect this end."""
    match row.state:
        case "succeeded":
            return True
        case "canceled":
            return canceled
        case "expired":
            return row.deadline_at_ms is not None and row.ended_at_ms >= row.deadline_at_ms
        case "failed":
            return _crashes(attempts) >= CRASHED_MACHINES or _fruitless(attempts) >= FRUITLESS
    return False


def _crashes(attempts: list[Any]) -> int:
    """How many of its own there were since the latest attempt that committed a step, that one included."""
    count = 0
    for it in attempts:
        count = 0 if it.committed_step > it.start_step else count
        count += it.reason == Reason.CRASHED and not it.shared_fault
    return count


def _fruitless(attempts: list[Any]) -> int:
    """How many at the end, one after the other, committed no step."""
    count = 0
    for it in reversed(attempts):
        if it.committed_step > it.start_step:
            break
        count += 1
    return count


def _results(checker: InvariantChecker, storage: RealStorage, reference: Mapping[str, str]) -> Iterator[str]:
    """Each job that succeeded has its result, and it is the right bytes; so is every checkpoint."""
    jobs = {row.id: row for row in checker.now.jobs}
    places = {(row.project_id, row.sha256): row.key for row in checker.now.blobs}
    done = set()
    for table in ("artifacts", "checkpoints"):
        for row in checker.now.tables[table]:
            spec, at = jobs[row.job_id].spec, places.get((row.project_id, row.sha256), "")
            if jobs[row.job_id].kind == "train":
                if table == "artifacts" and row.name.endswith(WEIGHTS):
                    done.add(row.job_id)
                    if row.sha256 != reference.get(row.name):
                        yield f"{row.job_id}: {row.name} is {row.sha256}, and undisturbed it is {reference}"
                continue
            steps = spec["steps"] if table == "artifacts" else row.step
            kept = storage.objects.get(at)
            if kept is None or kept.data != counted(steps, spec["salt"]):
                yield f"{table} of {row.job_id} at step {steps}: {kept and kept.data!r}"
            elif table == "artifacts":
                done.add(row.job_id)
    for job_id, row in jobs.items():
        if row.state == "succeeded" and job_id not in done:
            yield f"{job_id} succeeded and has no result"
