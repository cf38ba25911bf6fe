"""The arguments in `optimizer_args` of each optimizer, by the names of its package, with bounds."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from giornata.protocol.training.optimization import OptimizationFields, Optimizer

Value = bool | int | float | tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arg:
    """One argument. A number lies from `low` to `high`; `above` and `below` mean that the bound itself is not taken.
    `count` numbers make a tuple. `choices` are the values of a switch. `field` is the field of the spec that says the
    same, and that the argument takes the place of.
    """

    meaning: str
    default: Value | None
    low: float = 0.0
    high: float = 1.0
    above: bool = False
    below: bool = False
    count: int = 1
    choices: tuple[bool, ...] = ()
    field: tuple[str, ...] = ()

    @property
    def values(self) -> str:
        """The permitted values, as text."""
        if self.choices:
            return ", ".join(str(each).lower() for each in self.choices)
        bounds = f"{'>' if self.above else '≥'} {self.low:g}, {'<' if self.below else '≤'} {self.high:g}"
        return bounds if self.count == 1 else f"{self.count} numbers, each {bounds}"

    def takes(self, value: Any) -> bool:
        """Return True when the value is one that the argument may have."""
        if self.choices:
            return isinstance(value, bool) and value in self.choices
        if self.count > 1:
            several = isinstance(value, tuple | list) and len(value) == self.count
            return several and all(self._holds(each) for each in value)
        return self._holds(value)

    def _holds(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        low = value > self.low if self.above else value >= self.low
        return low and (value < self.high if self.below else value <= self.high)


def _betas(*default: float, field: tuple[str, ...] = ("adam_beta1", "adam_beta2")) -> Arg:
    meaning = "Decay rates of the moments, in the order of the optimizer's paper. Higher: longer averages."
    return Arg(meaning=meaning, default=default, below=True, count=len(default), field=field)


_DECAY = Arg(
    meaning="Weight decay, decoupled from the gradient: a step subtracts learning rate times this share. 0: none.",
    default=1e-4,
    high=10.0,
    field=("adam_weight_decay",),
)
_EPS = Arg(
    meaning="Term that keeps the division by the second moment finite.",
    default=1e-8,
    above=True,
    field=("adam_epsilon",),
)
_ADAM = {"betas": _betas(0.9, 0.999), "eps": _EPS, "weight_decay": _DECAY}


def _switch(meaning: str, *, default: bool, choices: tuple[bool, ...] = (True, False)) -> Arg:
    return Arg(meaning=meaning, default=default, choices=choices)


_CLIP = Arg(
    meaning="Maximum root mean square of an update. Larger updates are scaled down to it.",
    default=1.0,
    high=1e6,
    above=True,
)

ARGS: Mapping[Optimizer, Mapping[str, Arg]] = MappingProxyType(
    {
        Optimizer.ADAMW: _ADAM,
        Optimizer.ADAMW_8BIT: _ADAM,
        Optimizer.PRODIGY: {
            **_ADAM,
            "beta3": Arg(
                meaning="Decay rate of the estimate of the distance. Default: the square root of the second of "
                "betas.",
                default=None,
                below=True,
            ),
            "d0": Arg(
                meaning="First estimate of the distance, which the step size follows. Lower: a more careful start.",
                default=1e-6,
                above=True,
            ),
            "d_coef": Arg(
                meaning="Factor of the step size. Above 1: larger steps. Below 1: smaller steps.",
                default=1.0,
                high=100,
                above=True,
            ),
            "decouple": _switch("true: weight decay as in AdamW. false: as in Adam.", default=True),
            "growth_rate": Arg(
                meaning="Maximum factor by which the estimate grows in a step. Default: no maximum.",
                default=math.inf,
                low=1.0,
                high=1e6,
                above=True,
            ),
            "safeguard_warmup": _switch("true: steps of the warm-up do not raise the estimate.", default=True),
            "use_bias_correction": _switch("true: correct the moments of the first steps, as in Adam.", default=True),
        },
        Optimizer.ADAFACTOR: {
            "clip_threshold": _CLIP,
            "decay_rate": Arg(
                meaning="Exponent with which the second moment's decay rate follows the number of the step.",
                default=-0.8,
                low=-1.0,
                high=0.0,
                below=True,
            ),
            "eps": Arg(
                meaning="Term that is added to squares, and minimum size of a tensor for scale_parameter.",
                default=(1e-30, 1e-3),
                above=True,
                count=2,
            ),
            "relative_step": _switch(
                "Only false: the step size is the field learning_rate.", default=False, choices=(False,)
            ),
            "scale_parameter": _switch("true: multiply the learning rate by the size of each tensor.", default=False),
            "warmup_init": _switch(
                "Only false: the warm-up is the field lr_warmup_steps.", default=False, choices=(False,)
            ),
            "weight_decay": _DECAY,
        },
        Optimizer.SCHEDULE_FREE: {
            **_ADAM,
            "r": Arg(
                meaning="Exponent of the step's number in the weights of the average. Higher: later steps count "
                "more.",
                default=0.0,
                high=100.0,
            ),
            "weight_lr_power": Arg(
                meaning="Exponent of the learning rate in the weights of the average.", default=2.0, high=10.0
            ),
        },
        Optimizer.LION: {"betas": _betas(0.9, 0.99, field=()), "weight_decay": _DECAY},
        Optimizer.CAME: {
            "betas": _betas(0.9, 0.999, 0.9999, field=()),
            "clip_threshold": _CLIP,
            "eps": Arg(
                meaning="Terms that are added to squares of the gradient, and of the instability.",
                default=(1e-30, 1e-16),
                above=True,
                count=2,
            ),
            "weight_decay": _DECAY,
        },
    }
)
"""By optimizer and name. Every default is what the optimizer has without the argument; where `field` names a field of
the spec, that field's value is the default."""


def argument(spec: OptimizationFields, name: str) -> Any:
    """Return the value of this argument of the job's optimizer.

    The value comes from `optimizer_args`, else from the field with the same meaning, else from the default.
    """
    if name in spec.optimizer_args:
        value = spec.optimizer_args[name]
        return tuple(value) if isinstance(value, tuple | list) else value
    known = ARGS[spec.optimizer][name]
    said = tuple(getattr(spec, field) for field in known.field)
    if not said:
        return known.default
    return said if len(said) > 1 else said[0]


def args_contradictions(spec: OptimizationFields) -> Iterator[str]:
    """A sentence for each argument that the job's optimizer does not take, or that a field of the spec says too."""
    known, given = ARGS[spec.optimizer], spec.optimizer_args
    if unknown := sorted(given.keys() - known.keys()):
        yield f"optimizer_args of {spec.optimizer} has no {', '.join(unknown)}; expected: {', '.join(known)}"
    if spec.optimizer is Optimizer.SCHEDULE_FREE and _first(given.get("betas")) == 0.0:
        yield "optimizer_args betas must begin above 0 with adamw_schedule_free, which averages by it"
    fields = type(spec).model_fields
    for name in sorted(given.keys() & known.keys()):
        arg, value = known[name], given[name]
        if not arg.takes(value):
            yield f"optimizer_args {name} is {value!r}, but must be {arg.values}"
        if double := [field for field in arg.field if getattr(spec, field) != fields[field].default]:
            yield f"optimizer_args {name} says the same as {', '.join(double)}; give one of them"


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple | list) and value else value
