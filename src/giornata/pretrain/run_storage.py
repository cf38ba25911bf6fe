"""Where a run keeps what it has: checkpoints, metrics, samples and the model, below its storage and its name."""

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.feeding.ledger import Ledger
from giornata.pretrain.feeding.rows_of_phase import RowsOfPhase
from giornata.pretrain.training.committed import newest
from giornata.pretrain.training.progress import Progress
from giornata.protocol.pretraining import PretrainConfig


def run_storage(config: PretrainConfig) -> Storage:
    """The run's own folder."""
    return Storage.at(config.storage) / config.name


def progress_of(run: Storage) -> Progress:
    """As the newest checkpoint has it; a new one when there is none."""
    checkpoint = newest(run)
    return Progress() if checkpoint is None else checkpoint.progress(run)


def ledger_of(progress: Progress, phase: int, rows_of: RowsOfPhase) -> Ledger:
    """What is known to be trained of a phase."""
    ledgers = progress.ledgers
    return Ledger.from_json(ledgers[phase], rows_of) if phase < len(ledgers) else Ledger(rows_of)
