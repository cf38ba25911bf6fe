"""The folder of a run below its storage, with checkpoints, metrics, samples and the model."""

from dataclasses import replace
from pathlib import Path

from giornata.pretrain.data.storage import Storage, absolute
from giornata.pretrain.feeding.ledger import UseLedger
from giornata.pretrain.feeding.rows_of_phase import RowsOfPhase
from giornata.pretrain.run_state.committed import newest
from giornata.pretrain.run_state.progress import TrainingProgress
from giornata.protocol.pretraining import PretrainConfig


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
