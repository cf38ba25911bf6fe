"""The list of a data set's shards. `manifest.json` lies beside them and is written last: a folder without one is no
data set.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from giornata.domain.errors import Fault, InvalidInput

MANIFEST = "manifest.json"
VERSION = 1


def json_bytes(values: Mapping[str, Any]) -> bytes:
    """An object as the JSON files of a storage have it."""
    return (json.dumps(values, indent=1, sort_keys=True) + "\n").encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One Parquet file of the folder."""

    name: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All shards, in the order of their numbers, and the number of refused rows by reason."""

    shards: tuple[Shard, ...]
    quarantined: dict[str, int] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    """The origin of the shards: options, source; for encoded shards the digests of the encoders and of the source."""

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(shard.name for shard in self.shards)

    @property
    def digest(self) -> str:
        """sha256 over the shards' hashes, in order: equal digests mean equal rows."""
        return hashlib.sha256("\n".join(shard.sha256 for shard in self.shards).encode()).hexdigest()

    def to_bytes(self) -> bytes:
        return json_bytes({"version": VERSION, "rows": self.rows, **asdict(self)})

    @classmethod
    def from_bytes(cls, content: bytes, *, where: str) -> Self:
        """Read the file. Raises InvalidInput; `where` names the file in its message."""
        try:
            values = json.loads(content)
            if values["version"] != VERSION:
                raise ValueError(f"version {values['version']} is not known, only {VERSION}")
            shards = tuple(Shard(**shard) for shard in values["shards"])
            return cls(shards=shards, quarantined=dict(values["quarantined"]), about=dict(values["about"]))
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidInput([Fault(where=where, message=f"is not a manifest of shards: {error}")]) from None
