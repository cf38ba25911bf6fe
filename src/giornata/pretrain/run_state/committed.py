"""The folder of a run below its storage, and the run's checkpoints.

A checkpoint exists when its `commit.json`, the list of its files, does: that is written last.

    checkpoints/step-00000040-phase-0/
        shard-00001-….safetensors   tensors, of each trainer's; see giornata.pretrain.run_state.checkpoints
        state.json                  giornata.pretrain.run_state.progress
        commit.json                 {"version", "step", "phase", "files": {name: {"bytes", "sha256"}}}
        damaged                     exists when a start found other bytes than the list says

Needs no Ray: the data of a start is prepared from the same checkpoint.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from giornata.pretrain.data.manifest import json_bytes
from giornata.pretrain.data.storage import Storage, absolute
from giornata.pretrain.feeding.ledger import UseLedger
from giornata.pretrain.feeding.rows_of_phase import RowsOfPhase
from giornata.pretrain.run_state.progress import TrainingProgress
from giornata.protocol.pretraining import PretrainConfig

log = logging.getLogger(__name__)

FOLDER, COMMIT, STATE, DAMAGED = "checkpoints", "commit.json", "state.json", "damaged"
VERSION = 1


class CheckpointDamaged(RuntimeError):
    """The bytes of a committed checkpoint are not those that were written. It is marked: the next start takes the one
    before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """Size and digest of one file."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "FileFacts":
        with path.open("rb") as file:
            return cls(bytes=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedCheckpoint:
    """A committed checkpoint. `files` holds every file but commit.json."""

    name: str
    step: int
    phase: int
    files: Mapping[str, FileFacts]

    @property
    def shards(self) -> list[str]:
        """The files with tensors, by name."""
        return sorted(set(self.files) - {STATE})

    def progress(self, run: Storage) -> TrainingProgress:
        """The run's progress at this checkpoint. Raises InvalidInput for another version's."""
        where = f"{run}/{FOLDER}/{self.name}/{STATE}"
        return TrainingProgress.from_json(json.loads(run.read(f"{FOLDER}/{self.name}/{STATE}")), where=where)


def name_of(step: int, phase: int) -> str:
    """The folder of a checkpoint. Names sort in the order in which checkpoints are made."""
    return f"step-{step:08d}-phase-{phase}"


def commit(run: Storage, checkpoint: CommittedCheckpoint) -> None:
    """Make it exist. All its files have to be there."""
    content = {"version": VERSION, **asdict(checkpoint)}
    run.write(f"{FOLDER}/{content.pop('name')}/{COMMIT}", json_bytes(content))


def committed(run: Storage, *, warn: bool = True) -> Iterator[CommittedCheckpoint]:
    """All usable checkpoints, newest first. With `warn`, those that cannot be used are warned of: half-written ones,
    damaged ones, and ones with files missing."""
    by_name: dict[str, dict[str, int]] = {}
    for path, size_bytes in run.sizes(FOLDER):
        _, name, *file = path.split("/", 2)
        by_name.setdefault(name, {})["".join(file)] = size_bytes
    for name, sizes in sorted(by_name.items(), reverse=True):
        found = _usable(run, name, sizes)
        if isinstance(found, str):
            log.log(
                logging.WARNING if warn else logging.DEBUG, "checkpoint %s of %s is passed over: %s", name, run, found
            )
        else:
            yield found


def newest(run: Storage) -> CommittedCheckpoint | None:
    """The one to go on from; None at the beginning."""
    return next(committed(run), None)


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


def _usable(run: Storage, name: str, sizes: Mapping[str, int]) -> CommittedCheckpoint | str:
    """The checkpoint of this name whose files have these sizes, or why it cannot be used."""
    if COMMIT not in sizes:
        return "it was not finished"
    if DAMAGED in sizes:
        return "its bytes are not those that were written"
    try:
        values: Mapping[str, Any] = json.loads(run.read(f"{FOLDER}/{name}/{COMMIT}"))
        known = values["version"] == VERSION
        files = {file: FileFacts(**facts) for file, facts in values["files"].items()}
        found = CommittedCheckpoint(name=name, step=int(values["step"]), phase=int(values["phase"]), files=files)
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        return f"{COMMIT} cannot be read"
    for file, facts in found.files.items():
        if file not in sizes:
            return f"{file} is missing"
        if sizes[file] != facts.bytes:
            return f"{file} has {sizes[file]} bytes instead of {facts.bytes}"
    return found


def rooted(config: PretrainConfig) -> PretrainConfig:
    """The configuration with whole paths of its folders. Trainers, encoders and tasks have the working directory of
    their Ray, where relative paths name other folders."""
    model, latents, evaluate = config.model, config.encode.latents, config.evaluate
    model = replace(model, pretrained_model_name_or_path=_rooted(model.pretrained_model_name_or_path))
    inception = None if evaluate.inception is None else absolute(evaluate.inception)
    return replace(
        config,
        storage=absolute(config.storage),
        data=replace(config.data, shards=absolute(config.data.shards)),
        encode=replace(config.encode, latents=None if latents is None else absolute(latents)),
        model=model,
        evaluate=replace(evaluate, clip=_rooted(evaluate.clip), inception=inception),
    )


def _rooted(folder_or_id: str | None) -> str | None:
    """The whole path of a folder; the id of a hub stays as it is."""
    here = folder_or_id is not None and Path(folder_or_id).expanduser().is_dir()
    return absolute(folder_or_id) if here and folder_or_id is not None else folder_or_id


def run_storage(config: PretrainConfig) -> Storage:
    return Storage.at(config.storage) / config.name


def progress_of(run: Storage) -> TrainingProgress:
    """The progress of the newest checkpoint; a new one without a checkpoint."""
    checkpoint = newest(run)
    return TrainingProgress() if checkpoint is None else checkpoint.progress(run)


def ledger_of(progress: TrainingProgress, phase: int, rows_of: RowsOfPhase) -> UseLedger:
    """The ledger of a phase; a new one where no checkpoint has it."""
    ledgers = progress.ledgers
    return UseLedger.from_json(ledgers[phase], rows_of) if phase < len(ledgers) else UseLedger(rows_of)
