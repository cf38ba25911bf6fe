"""The work of an unfinished ingest, beside the shards: the same command continues it.

    unfinished/examined-<digest>/part-00000.parquet    the examined rows of a part
    unfinished/written-<digest>/stretch-00000.json     the shards of a whole stretch

Digests are of the source and of the options that matter. After a refusal for too many bad rows, a larger share may be
allowed without another examination.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from giornata.pretrain.data.decision import QUARANTINE_FOLDER
from giornata.pretrain.data.manifest import Shard
from giornata.pretrain.data.storage import Storage

FOLDER = "unfinished"
EXAMINATION = 2
"""The version of the examination. It is raised when a row may be judged in another way than before."""
# Options that do not change the examination of a row
_NOT_EXAMINED = {
    *("rows_per_shard", "shuffle_bytes", "max_captions"),
    *("max_quarantined_share", "dedupe_hash_distance"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """The work for one source with one set of options. `examined` and `written` are folders below `out`."""

    out: Storage
    examined: Storage
    written: Storage

    @classmethod
    def of(cls, out: Storage, about: dict[str, Any], *, examination: int = EXAMINATION) -> "Unfinished":
        """The work for an ingest that the manifest describes as `about`."""
        options = about["ingest"]
        perceptual = options["dedupe_hash_distance"] is not None
        asked = {name: each for name, each in options.items() if name not in _NOT_EXAMINED}
        found = {"source": about["source"], "ingest": asked, "perceptual": perceptual, "version": examination}
        below, wrote = out / FOLDER, {**about, "version": examination}
        return cls(
            out=out, examined=below / f"examined-{_digest(found)}", written=below / f"written-{_digest(wrote)}"
        )

    def clear(self) -> None:
        """Remove the work of other ingests, and shards of no whole stretch."""
        ours = {each.below for each in (self.examined, self.written)}
        for folder in {name.split("/")[1] for name in self.out.names(FOLDER)}:
            if (self.out / FOLDER / folder).below not in ours:
                self.out.remove_all(f"{FOLDER}/{folder}")
        whole = {shard.name for name in self.written.names() for shard in self._noted(name) or ()}
        for name in self.out.names():
            if name.startswith("shard-") and name.endswith(".parquet") and name not in whole:
                self.out.remove(name)
        self.out.remove_all(QUARANTINE_FOLDER)

    def shards_of(self, stretch: int) -> list[Shard] | None:
        """The shards of a stretch, or None when it is not whole."""
        return self._noted(_note_name(stretch))

    def note(self, stretch: int, shards: Sequence[Shard]) -> None:
        """Record that a stretch is whole."""
        self.written.write(_note_name(stretch), json.dumps([asdict(shard) for shard in shards]).encode())

    def remove(self) -> None:
        """Remove all of it, after the manifest was written."""
        self.out.remove_all(FOLDER)

    def _noted(self, name: str) -> list[Shard] | None:
        try:
            shards = [Shard(**each) for each in json.loads(self.written.read(name))]
            whole = all(self.out.size_bytes(shard.name) == shard.bytes for shard in shards)
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return shards if whole else None


def _note_name(stretch: int) -> str:
    return f"stretch-{stretch:05}.json"


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
