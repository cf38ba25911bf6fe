"""Which checkpoints there are. One exists when its `commit.json`, the list of its files, does: that is written last.

    checkpoints/step-00000040-phase-0/
        shard-00001-….safetensors   tensors, of each trainer's; see giornata.pretrain.training.checkpoints
        state.json                  giornata.pretrain.training.progress
        commit.json                 {"version", "step", "phase", "files": {name: {"bytes", "sha256"}}}
        damaged                     somebody found that the bytes are not those of the list: not used again

Needs neither torch nor Ray: whoever prepares the data of a start looks here too, and has to find the same one.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.training.progress import Progress

log = logging.getLogger(__name__)

FOLDER, COMMIT, STATE, DAMAGED = "checkpoints", "commit.json", "state.json", "damaged"
VERSION = 1


class CheckpointDamaged(RuntimeError):
    """The bytes of a committed checkpoint are not those that were written. It is marked: the next start takes the one
    before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Size and digest of one file."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "Facts":
        with path.open("rb") as file:
            return cls(bytes=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A committed checkpoint. `files` holds every file but commit.json."""

    name: str
    step: int
    phase: int
    files: Mapping[str, Facts]

    def progress(self, run: Storage) -> Progress:
        """How far the run was. Raises InvalidInput for another version's."""
        where = f"{run}/{FOLDER}/{self.name}/{STATE}"
        return Progress.from_json(json.loads(run.read(f"{FOLDER}/{self.name}/{STATE}")), where=where)


def name_of(step: int, phase: int) -> str:
    """The folder of a checkpoint. Names sort in the order in which checkpoints are made."""
    return f"step-{step:08d}-phase-{phase}"


def commit(run: Storage, checkpoint: Committed) -> None:
    """Make it exist. All its files have to be there."""
    files = {name: {"bytes": each.bytes, "sha256": each.sha256} for name, each in checkpoint.files.items()}
    content = {"version": VERSION, "step": checkpoint.step, "phase": checkpoint.phase, "files": files}
    text = json.dumps(content, indent=1, sort_keys=True) + "\n"
    run.write(f"{FOLDER}/{checkpoint.name}/{COMMIT}", text.encode())


def committed(run: Storage, *, warn: bool = True) -> Iterator[Committed]:
    """All that can be used, newest first. Warns of those that cannot: half-written, damaged, with files missing; one
    that looks on while they are written does not want to hear of that."""
    by_name: dict[str, dict[str, int]] = {}
    for path, size_bytes in run.sizes(FOLDER):
        _, name, *file = path.split("/", 2)
        by_name.setdefault(name, {})["".join(file)] = size_bytes
    for name, sizes in sorted(by_name.items(), reverse=True):
        why = _unusable(sizes)
        found = None if why else _read(run, name)
        if found is not None:
            why = _differing(found, sizes)
        if why or found is None:
            level = logging.WARNING if warn else logging.DEBUG
            log.log(level, "checkpoint %s of %s is passed over: %s", name, run, why or f"{COMMIT} cannot be read")
        else:
            yield found


def newest(run: Storage) -> Committed | None:
    """The one to go on from; None at the beginning."""
    return next(committed(run), None)


def mark_damaged(run: Storage, name: str, why: str) -> None:
    """Mark the checkpoint: no later start uses it."""
    run.write(f"{FOLDER}/{name}/{DAMAGED}", f"{why}\n".encode())


def retire(run: Storage, *, limit: int) -> None:
    """Keep the newest `limit` usable ones; remove the others and what was never committed before the last of them."""
    kept = [each.name for each in committed(run)][:limit]
    if not kept:
        return
    names = {path.split("/", 2)[1] for path in run.names(FOLDER)}
    for name in sorted(names - set(kept)):
        if name < kept[0]:
            # First what makes it exist: half a checkpoint shall never look like a whole one.
            run.remove(f"{FOLDER}/{name}/{COMMIT}")
            run.remove_all(f"{FOLDER}/{name}")


def _unusable(sizes: Mapping[str, int]) -> str | None:
    if COMMIT not in sizes:
        return "it was not finished"
    return "its bytes are not those that were written" if DAMAGED in sizes else None


def _read(run: Storage, name: str) -> Committed | None:
    try:
        values: Mapping[str, Any] = json.loads(run.read(f"{FOLDER}/{name}/{COMMIT}"))
        if values["version"] != VERSION:
            return None
        files = {file: Facts(**facts) for file, facts in values["files"].items()}
        return Committed(name=name, step=int(values["step"]), phase=int(values["phase"]), files=files)
    except (ValueError, KeyError, TypeError):
        return None


def _differing(checkpoint: Committed, sizes: Mapping[str, int]) -> str | None:
    for file, facts in checkpoint.files.items():
        if file not in sizes:
            return f"{file} is missing"
        if sizes[file] != facts.bytes:
            return f"{file} has {sizes[file]} bytes instead of {facts.bytes}"
    return None
