"""What an ingest has done so far, beside the shards, until all is done: the same command goes on from there.

    unfinished/examined-<digest>/part-00000.parquet    what was found out of a part's rows
    unfinished/written-<digest>/stretch-00000.json     the shards of a stretch that is whole

Digests are of the source and of the options that matter there: with others nothing of it is used. After a refusal for
too many bad rows, the share may be raised without examining anything again.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from giornata.pretrain.data import quarantine
from giornata.pretrain.data.manifest import Shard
from giornata.pretrain.data.storage import Storage

FOLDER = "unfinished"
EXAMINATION = 2
"""Raised when the same row may be judged otherwise than before: what an older version left is examined again."""
# Options that do not change what is found out of a row
_NOT_EXAMINED = {
    *("rows_per_shard", "shuffle_bytes", "max_captions"),
    *("max_quarantined_share", "dedupe_hash_distance"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """Of one source with one set of options. `examined` and `written` are folders below `out`."""

    out: Storage
    examined: Storage
    written: Storage

    @classmethod
    def of(cls, out: Storage, about: dict[str, Any], *, examination: int = EXAMINATION) -> "Unfinished":
        """`about` as in the manifest."""
        options = about["ingest"]
        perceptual = options["dedupe_hash_distance"] is not None
        asked = {name: each for name, each in options.items() if name not in _NOT_EXAMINED}
        found = {"source": about["source"], "ingest": asked, "perceptual": perceptual, "version": examination}
        below, wrote = out / FOLDER, {**about, "version": examination}
        return cls(
            out=out, examined=below / f"examined-{_digest(found)}", written=below / f"written-{_digest(wrote)}"
        )

    def clear(self) -> None:
        """Remove what is of another ingest, and shards that no note names."""
        ours = {each.below for each in (self.examined, self.written)}
        for folder in {name.split("/")[1] for name in self.out.names(FOLDER)}:
            if (self.out / FOLDER / folder).below not in ours:
                self.out.remove_all(f"{FOLDER}/{folder}")
        noted = {shard.name for name in self.written.names() for shard in self._noted(name) or ()}
        for name in self.out.names():
            if name.startswith("shard-") and name.endswith(".parquet") and name not in noted:
                self.out.remove(name)
        self.out.remove_all(quarantine.FOLDER)

    def shards_of(self, stretch: int) -> list[Shard] | None:
        """None when it is not whole."""
        return self._noted(_note_name(stretch))

    def note(self, stretch: int, shards: Sequence[Shard]) -> None:
        """It is whole."""
        self.written.write(_note_name(stretch), json.dumps([asdict(shard) for shard in shards]).encode())

    def remove(self) -> None:
        """All is done."""
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
