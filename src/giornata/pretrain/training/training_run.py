"""What the loop of a trainer is given."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.feeding.examples import EmptyPrompt
from giornata.pretrain.feeding.feed import Batch, Feed
from giornata.pretrain.feeding.ledger import Ledger, Use
from giornata.pretrain.feeding.rows_of_phase import RowsOfPhase
from giornata.pretrain.training.committed import Committed
from giornata.pretrain.training.spending import Attempt
from giornata.protocol.pretraining import PretrainConfig

Feeds = Callable[[int, Ledger], Iterator[Feed]]
"""(place of the phase, what of it was trained) to this trainer's feeds. Asked again in the same phase, with what was
trained meanwhile, when the feeds ended before the phase was complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a trainer is given. All trainers get the same, but for feeds and held rows.

    `storage` is the run's own folder; `scratch` a local one, for this node. `digests` say what the rows are made of
    (`manifest`, `encoder`), `scaling` is the encoder's, `empty` its encoding of "". `held(phase)` are this trainer's
    rows of validation. `start` is the checkpoint to go on from (giornata.pretrain.training.committed.newest); None:
    from the beginning. `now_s` is the time in seconds since 1970, for the metrics. `report` gets the metrics of every
    step, `preempted` is asked once before every step, in all trainers; `traced` is told (phase, step, rows) of what
    this trainer trained. `node` names the machine that this trainer is on. `fence` raises InvalidInput when another
    command owns the storage by now; the first trainer asks it before it writes a checkpoint, and before the commit.

    `attempt` says since when this start costs money; None: since the call of `train`.
    """

    config: PretrainConfig
    phases: Sequence[RowsOfPhase]
    storage: Storage
    scratch: Path
    digests: Mapping[str, str]
    scaling: tuple[float, float]
    feeds: Feeds
    clock_s: Callable[[], float]
    now_s: Callable[[], float] = time.time
    device: torch.device
    empty: EmptyPrompt | None = None
    held: Callable[[int], Iterable[Batch]] = lambda _: ()
    report: Callable[[Mapping[str, float]], None] = lambda _: None
    preempted: Callable[[], bool] = lambda: False
    traced: Callable[[int, int, Sequence[Use]], None] = lambda _phase, _step, _uses: None
    fence: Callable[[], None] = lambda: None
    start: Committed | None = None
    node: str = ""
    node_size: int | None = None
    peak_flops_per_s: float | None = None
    attempt: Attempt | None = None
