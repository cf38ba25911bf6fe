"""What keeps an adapter from learning its pictures by heart."""

from typing import TYPE_CHECKING

from pydantic import Field

from giornata.protocol.model import Message
from giornata.protocol.training.adapter import AdapterType
from giornata.protocol.training.optimisation import Compile, Optimizer

if TYPE_CHECKING:
    from giornata.protocol.specs import TrainSpec

DROPOUTS = ("network_dropout", "rank_dropout", "module_dropout")


class RegularisationFields(Message):
    """What keeps an adapter from learning its pictures by heart."""

    network_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Part of the numbers between A and B that is set to 0 in each step; the others are divided by "
        "1 - network_dropout. sd-scripts' meaning.",
    )
    rank_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Part of the ranks of each layer that is left out for a picture in each step; the others are "
        "divided by 1 - rank_dropout. sd-scripts' meaning.",
    )
    module_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Part of the layers whose adapter is left out of a micro-batch; the others stay as they are. "
        "sd-scripts' meaning.",
    )
    scale_weight_norms: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="After each step a layer whose product (alpha / rank) B A has a larger Frobenius norm is scaled "
        "to this one. 1 is usual. The metric norms_scaled counts such layers.",
    )


def has_dropout(spec: "TrainSpec") -> bool:
    """Whether something of the adapter is left out in each step."""
    return any(getattr(spec, name) > 0 for name in DROPOUTS)


def contradictions(spec: "TrainSpec") -> list[tuple[bool, str]]:
    """(whether it is one, what to say of it)."""
    lokr, limit = spec.adapter_type is AdapterType.LOKR, spec.scale_weight_norms is not None
    dropped = [name for name in DROPOUTS if getattr(spec, name) > 0]
    return [
        *((lokr, f"{name} goes with adapter_type lora only") for name in dropped),
        *((spec.compile is Compile.ON, f"{name} does not go with compile on; use compile off") for name in dropped),
        (limit and lokr, "scale_weight_norms goes with adapter_type lora only"),
        (limit and spec.use_dora, "scale_weight_norms does not go with use_dora, which learns the length by itself"),
        (
            limit and spec.optimizer is Optimizer.SCHEDULE_FREE,
            "scale_weight_norms does not go with adamw_schedule_free, whose average knows nothing of the scaling",
        ),
    ]
