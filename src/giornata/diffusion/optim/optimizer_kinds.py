"""The optimizers that a job may choose: the making of each, and the tensors and numbers of its state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Protocol

import torch

from giornata.diffusion.optim import adafactor, adamw_8bit, came, prodigy
from giornata.diffusion.optim.came import Came, Lion
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.optimization import Optimizer
from giornata.protocol.training.optimizer_args import argument

State = dict[str, Any]


class Make(Protocol):
    """The function that makes an optimizer over groups of parameters, each with its learning rate."""

    def __call__(self, groups: list[dict[str, Any]], spec: TrainSpec, *, fused: bool) -> torch.optim.Optimizer: ...


class Begin(Protocol):
    """The function that makes a parameter's state after `step` steps, but for what its tensors have learned."""

    def __call__(self, parameter: torch.nn.Parameter, step: int, *, on_cuda: bool) -> State: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerKind:
    """One kind of optimizer, with its state. `tensors` of each parameter, as far as it has them, and `numbers` of
    each group, with their first values, are all that it remembers besides the step. `result` makes a parameter's
    value for users, where that is not the parameter. `package` is where it comes from, if not from torch. `revision`
    counts changes of our code that changed its rounding. `first_numbers` are the first values that a spec wants
    otherwise.

    `on_rows`: it may be given a row of numbers instead of the tensors in it, for it treats each number for itself, or
    sums over all. `flat` are those of `tensors` that have one dimension whatever the parameter has. `factored` are
    those that are rows or columns of a matrix only, `of_vectors` those that only parameters of one dimension have.
    """

    make: Make
    begin: Begin
    tensors: tuple[str, ...]
    numbers: Mapping[str, float | int] = field(default_factory=dict)
    result: Callable[[torch.nn.Parameter, State, TrainSpec], torch.Tensor] | None = None
    package: str | None = None
    revision: int = 1
    on_rows: bool = False
    flat: frozenset[str] = frozenset()
    first_numbers: Callable[[TrainSpec], Mapping[str, float | int]] | None = None
    factored: tuple[str, ...] = ()
    of_vectors: tuple[str, ...] = ()

    def copies(self, rank: int) -> float:
        """Return the most numbers that the optimizer remembers for each number of an adapter of this rank. Rows and
        columns of an r x n matrix are r + n numbers, at most 2/r of the r n numbers of the matrix for each pair."""
        whole = set(self.tensors) - set(self.factored) - set(self.of_vectors)
        return len(whole) + len(self.factored) / 2 * min(2.0, 2.0 / rank)


def _zeros(parameter: torch.nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter, requires_grad=False)


def _as_in_adam(spec: TrainSpec) -> dict[str, Any]:
    """Return the arguments that AdamW and schedule-free AdamW share."""
    return {
        "lr": spec.learning_rate,
        "betas": argument(spec, "betas"),
        "eps": argument(spec, "eps"),
        "weight_decay": argument(spec, "weight_decay"),
    }


def _given(spec: TrainSpec, *names: str) -> dict[str, Any]:
    """Return those of the named arguments that the spec sets."""
    return {name: argument(spec, name) for name in names if name in spec.optimizer_args}


# ---- AdamW (Loshchilov & Hutter, 2019)


def _make_adamw(groups: list[dict[str, Any]], spec: TrainSpec, *, fused: bool) -> torch.optim.Optimizer:
    del fused  # there is such an implementation for CPUs as well
    return torch.optim.AdamW(groups, **_as_in_adam(spec), fused=True)


def _begin_adamw(parameter: torch.nn.Parameter, step: int, *, on_cuda: bool) -> State:
    del on_cuda
    count = torch.tensor(float(step), dtype=torch.float32, device=parameter.device)
    return {"step": count, "exp_avg": _zeros(parameter), "exp_avg_sq": _zeros(parameter)}


# ---- schedule-free AdamW (Defazio et al., 2024, arXiv 2405.15682)


def _make_schedule_free(groups: list[dict[str, Any]], spec: TrainSpec, *, fused: bool) -> torch.optim.Optimizer:
    import schedulefree

    made = schedulefree.AdamWScheduleFree(
        groups,
        **_as_in_adam(spec),
        **_given(spec, "r", "weight_lr_power"),
        foreach=fused,
    )
    made.train()
    optimizer: torch.optim.Optimizer = made
    return optimizer


def _begin_schedule_free(parameter: torch.nn.Parameter, step: int, *, on_cuda: bool) -> State:
    del step, on_cuda
    return {"z": parameter.detach().clone(), "exp_avg_sq": _zeros(parameter)}


def _averaged(parameter: torch.nn.Parameter, state: State, spec: TrainSpec) -> torch.Tensor:
    """Return x of y = (1 - beta1) z + beta1 x, as the optimizer's own `eval` computes it."""
    return parameter.detach().lerp(state["z"], weight=1 - 1 / argument(spec, "betas")[0])


# ---- Lion and CAME


def _make_lion(groups: list[dict[str, Any]], spec: TrainSpec, *, fused: bool) -> torch.optim.Optimizer:
    del fused
    return Lion(groups, betas=argument(spec, "betas"), weight_decay=argument(spec, "weight_decay"))


def _begin_lion(parameter: torch.nn.Parameter, step: int, *, on_cuda: bool) -> State:
    del step, on_cuda
    return {"exp_avg": _zeros(parameter)}


def _make_came(groups: list[dict[str, Any]], spec: TrainSpec, *, fused: bool) -> torch.optim.Optimizer:
    del fused
    return Came(
        groups,
        betas=argument(spec, "betas"),
        eps=argument(spec, "eps"),
        clip_threshold=argument(spec, "clip_threshold"),
        weight_decay=argument(spec, "weight_decay"),
    )


def _begin_came(parameter: torch.nn.Parameter, step: int, *, on_cuda: bool) -> State:
    del step, on_cuda
    return came.begin(parameter)


KINDS: Mapping[Optimizer, OptimizerKind] = {
    Optimizer.ADAMW: OptimizerKind(
        make=_make_adamw, begin=_begin_adamw, tensors=("exp_avg", "exp_avg_sq"), on_rows=True
    ),
    Optimizer.ADAMW_8BIT: OptimizerKind(
        make=adamw_8bit.make, begin=adamw_8bit.begin, tensors=adamw_8bit.TENSORS, package="bitsandbytes"
    ),
    Optimizer.PRODIGY: OptimizerKind(
        make=prodigy.make,
        begin=prodigy.begin,
        tensors=prodigy.TENSORS,
        numbers=prodigy.NUMBERS,
        revision=2,
        on_rows=True,
        flat=prodigy.FLAT,
        first_numbers=prodigy.first_numbers,
    ),
    Optimizer.ADAFACTOR: OptimizerKind(
        make=adafactor.make, begin=adafactor.begin, tensors=adafactor.TENSORS, revision=2
    ),
    Optimizer.SCHEDULE_FREE: OptimizerKind(
        make=_make_schedule_free,
        begin=_begin_schedule_free,
        tensors=("z", "exp_avg_sq"),
        numbers={"k": 0, "weight_sum": 0.0, "lr_max": -1.0},
        result=_averaged,
        package="schedulefree",
        on_rows=True,
    ),
    Optimizer.LION: OptimizerKind(make=_make_lion, begin=_begin_lion, tensors=("exp_avg",), on_rows=True),
    Optimizer.CAME: OptimizerKind(
        make=_make_came, begin=_begin_came, tensors=came.TENSORS, factored=came.FACTORED, of_vectors=(came.SQUARES,)
    ),
}


def optimizer_fingerprint(optimizer: Optimizer) -> dict[str, str]:
    """Return what the optimizer's rounding depends on: the version of its own package, and the revision of our
    code."""
    kind = KINDS[optimizer]
    found = {} if kind.package is None else {kind.package: version(kind.package)}
    return found if kind.revision == 1 else {**found, "optimizer": f"{optimizer}, revision {kind.revision}"}
