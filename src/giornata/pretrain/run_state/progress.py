"""The progress of a run, which lies in a checkpoint beside its tensors, as JSON."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.pretraining import PretrainConfig, PretrainOptimizer
from giornata.protocol.training.optimization import LrScheduler

VERSION = 1
FREE_OF_TRAIN = frozenset(
    {
        "parallel",
        "torch_compile",
        "channels_last",
        "gradient_checkpointing",
        "checkpoint_steps",
        "checkpoint_cadence",
        "checkpoints_total_limit",
        "validation_steps",
        "validation_prompts",
        "max_loss_ratio",
        "max_bad_steps",
    }
)
"""Fields that may change between two starts of a run: they change the trained weights in their last bits only."""


OPTIONAL = frozenset({"trained_s", "interruptions", "left"})
"""Fields that a checkpoint of this version may lack."""
FORMER = frozenset({"encoders", "encoders_seen", "encoder_changes"})
"""Fields of older checkpoints of this version that are ignored."""
FREE_OF_PHASES = frozenset({"train_batch_size", "encoders"})


class TrainingOutcome(StrEnum):
    """The trainers' end. A checkpoint always holds everything that was trained."""

    FINISHED = "finished"  # all phases
    PREEMPTED = "preempted"  # stopped on a notice; start again to go on


@dataclass(slots=True, kw_only=True)
class TrainingProgress:
    """`phase` is the place of the phase that goes on; of a finished run the number of phases. `step` counts through
    all phases, `samples` rows that made an update. `used`, `unreadable` and `step_in_phase` are of this phase, `used`
    with rows that were not trained. `ledgers` are those of the phases so far (giornata.pretrain.feeding.ledger).

    `trained_s` are seconds of all attempts up to this checkpoint, `interruptions` the starts that followed a loss.
    `left` says that the trainers ended with this checkpoint by themselves (giornata.pretrain.run_state.costs)."""

    phase: int = 0
    step_in_phase: int = 0
    step: int = 0
    updates: int = 0
    ema_steps: int = 0
    samples: int = 0
    used: int = 0
    unreadable: int = 0
    skipped_steps: int = 0
    skipped_rows: int = 0
    spent_usd: float = 0.0
    losses: list[float] = field(default_factory=list)
    bad_in_row: int = 0
    ledgers: list[dict[str, Any]] = field(default_factory=list)
    origin: dict[str, str] = field(default_factory=dict)
    trained_s: float = 0.0
    interruptions: int = 0
    left: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, where: str) -> Self:
        """Parse a checkpoint's progress. Raises InvalidInput for another version's; `where` is for the message."""
        known = {each.name for each in fields(cls)}
        given = set(values) - {"version"} - FORMER
        if values.get("version") != VERSION or not known - OPTIONAL <= given <= known:
            message = f"is a checkpoint of version {values.get('version')!r}, and only {VERSION} is known"
            raise InvalidInput([Fault(where=where, message=message)])
        return cls(**{name: values[name] for name in given})


def config_digest(config: PretrainConfig, begun_phases: int) -> str:
    """sha256 of what a run may not change once so many of its phases were begun. Trainers, prices, storage, later
    phases, where encoders work and whatever only sets the pace may change."""
    values = config.to_json()
    train = {name: each for name, each in values["train"].items() if name not in FREE_OF_TRAIN}
    phases = [{k: v for k, v in each.items() if k not in FREE_OF_PHASES} for each in values["phases"][:begun_phases]]
    data = {name: each for name, each in values["data"].items() if name not in {"shards", "max_quarantined_share"}}
    # Younger than some checkpoints, whose runs knew no other choice:
    if data["caption_weights"] is None:
        del data["caption_weights"]
    train["token_routing"] = 0.0  # a former choice, with which older checkpoints have their digest
    if train["optimizer"] == PretrainOptimizer.ADAMW:
        del train["optimizer"]
    for phase in phases:
        if phase["lr_scheduler"] == LrScheduler.CONSTANT_WITH_WARMUP:
            del phase["lr_scheduler"]
    model = {name: values["model"][name] for name in ("architecture", "prediction_type")}
    fixed = {"seed": values["seed"], "train": train, "phases": phases, "data": data, "model": model}
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


def origin_of(progress: TrainingProgress, config: PretrainConfig, digests: Mapping[str, str]) -> dict[str, str]:
    """The origin of the weights: digests of configuration, data and encoders."""
    begun_phases = progress.phase + (1 if progress.step_in_phase else 0)
    return {"config": config_digest(config, begun_phases), **digests}


def check_origin(
    progress: TrainingProgress, config: PretrainConfig, digests: Mapping[str, str], *, where: str
) -> None:
    """Check that the checkpoint is of this run. Raises InvalidInput with all differences."""
    now = origin_of(progress, config, digests)
    differing = [name for name in sorted({*now, *progress.origin}) if now.get(name) != progress.origin.get(name)]
    hint = "take back the change, or give the run another name"
    messages = {"config": "the configuration of seed, model, data, training or finished phases has changed"}
    if differing:
        raise InvalidInput(
            Fault(where=where, message=messages.get(name, f"{name} differs from what it was made with"), hint=hint)
            for name in differing
        )
