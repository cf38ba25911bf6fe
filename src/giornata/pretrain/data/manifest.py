"""The list of a data set's shards: what there is to train, once and for all.

`manifest.json` lies beside the shards and is written last: without it a folder of shards is not a data set.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from giornata.domain.errors import Fault, InvalidInput

MANIFEST = "manifest.json"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One Parquet file of the folder."""

    name: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All shards, in the order of their numbers, and what was kept out: reason to number of rows."""

    shards: tuple[Shard, ...]
    quarantined: dict[str, int] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    """How they were made: options, source; for encoded shards the digests of the encoders and of the source."""

    @property
    def rows(self) -> int:
        """Rows of all shards."""
        return sum(shard.rows for shard in self.shards)

    @property
    def digest(self) -> str:
        """sha256 over the shards' hashes, in order: equal digests mean equal rows."""
        return hashlib.sha256("\n".join(shard.sha256 for shard in self.shards).encode()).hexdigest()

    def to_bytes(self) -> bytes:
        """As it is written."""
        values = {"version": VERSION, "rows": self.rows, **asdict(self)}
        return (json.dumps(values, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def from_bytes(cls, content: bytes, *, where: str) -> Self:
        """Raises InvalidInput when it is none; `where` is for the message."""
        try:
            values = json.loads(content)
            if values["version"] != VERSION:
                raise ValueError(f"version {values['version']} is not known, only {VERSION}")
            shards = tuple(Shard(**shard) for shard in values["shards"])
            return cls(shards=shards, quarantined=dict(values["quarantined"]), about=dict(values["about"]))
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidInput([Fault(where=where, message=f"is not a manifest of shards: {error}")]) from None
