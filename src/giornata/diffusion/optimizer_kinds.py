"""The optimizers that a job may choose: how each is made, and what its state consists of."""

import contextlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Protocol

import torch

from giornata.diffusion import adamw_8bit
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.optimisation import Optimizer

State = dict[str, Any]


class Make(Protocol):
    """Makes the optimizer over groups of parameters, each with its learning rate."""

    def __call__(self, groups: list[dict[str, Any]], spec: TrainSpec, *, fused: bool) -> torch.optim.Optimizer: ...


class Begin(Protocol):
    """The state of a parameter after `step` steps, but for what its tensors have learned."""

    def __call__(self, parameter: torch.nn.Parameter, step: int, *, on_cuda: bool) -> State: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One optimizer. `tensors` of each parameter, as far as it has them, and `numbers` of each group, with their
    first values, are all that it remembers besides the step. `result` makes a parameter's value for users, where that
    is not the parameter. `package` is where it comes from, if not from torch.
    """

    make: Make
    begin: Begin
    tensors: tuple[str, ...]
    numbers: Mapping[str, float | int] = field(default_factory=dict)
    result: Callable[[torch.nn.Parameter, State, TrainSpec], torch.Tensor] | None = None
    package: str | None = None


def _zeros(parameter: torch.nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter, requires_grad=False)


def _as_in_adam(spec: TrainSpec) -> dict[str, Any]:
    """What all but Adafactor are told alike."""
    return {
        "lr": spec.learning_rate,
        "betas": (spec.adam_beta1, spec.adam_beta2),
        "eps": spec.adam_epsilon,
        "weight_decay": spec.adam_weight_decay,
    }


# ---- AdamW (Loshchilov & Hutter, 2019)


def _make_adamw(groups: list[dict[str, Any]], spec: TrainSpec, *, fused: bool) -> torch.optim.Optimizer:
    del fused  # there is such an implementation for CPUs as well
    return torch.optim.AdamW(groups, **_as_in_adam(spec), fused=True)


def _begin_adamw(parameter: torch.nn.Parameter, step: int, *, on_cuda: bool) -> State:
    del on_cuda
    count = torch.tensor(float(step), dtype=torch.float32, device=parameter.device)
    return {"step": count, "exp_avg": _zeros(parameter), "exp_avg_sq": _zeros(parameter)}


# ---- Prodigy (Mishchenko & Defazio, 2023, arXiv 2306.06101)


def _make_prodigy(groups: list[dict[str, Any]], spec: TrainSpec, *, fused: bool) -> torch.optim.Optimizer:
    del fused
    import prodigyopt

    # It tells on standard output, where the engine speaks its protocol, what it was told itself.
    with contextlib.redirect_stdout(io.StringIO()):
        made: torch.optim.Optimizer = prodigyopt.Prodigy(
            groups,
            **_as_in_adam(spec),
            decouple=True,
            use_bias_correction=True,
            safeguard_warmup=True,
        )
    return made


def _begin_prodigy(parameter: torch.nn.Parameter, step: int, *, on_cuda: bool) -> State:
    del on_cuda
    first = parameter.detach().flatten().clone()
    moments = {"exp_avg": _zeros(parameter), "exp_avg_sq": _zeros(parameter)}
    return {"step": step, "s": torch.zeros_like(first), "p0": first, **moments}


# ---- Adafactor (Shazeer & Stern, 2018, arXiv 1804.04235), with a learning rate of the job's


def _make_adafactor(groups: list[dict[str, Any]], spec: TrainSpec, *, fused: bool) -> torch.optim.Optimizer:
    del fused
    from transformers.optimization import Adafactor

    return Adafactor(
        groups,
        lr=spec.learning_rate,
        weight_decay=spec.adam_weight_decay,
        scale_parameter=False,
        relative_step=False,
    )


def _begin_adafactor(parameter: torch.nn.Parameter, step: int, *, on_cuda: bool) -> State:
    del on_cuda
    rows, columns = parameter.shape[:-1], parameter.shape[:-2] + parameter.shape[-1:]
    sums = {"exp_avg_sq_row": parameter.new_zeros(rows), "exp_avg_sq_col": parameter.new_zeros(columns)}
    return {"step": step, "RMS": 0, **sums}


# ---- schedule-free AdamW (Defazio et al., 2024, arXiv 2405.15682)


def _make_schedule_free(groups: list[dict[str, Any]], spec: TrainSpec, *, fused: bool) -> torch.optim.Optimizer:
    import schedulefree

    made = schedulefree.AdamWScheduleFree(
        groups,
        **_as_in_adam(spec),
        foreach=fused,
    )
    made.train()
    optimizer: torch.optim.Optimizer = made
    return optimizer


def _begin_schedule_free(parameter: torch.nn.Parameter, step: int, *, on_cuda: bool) -> State:
    del step, on_cuda
    return {"z": parameter.detach().clone(), "exp_avg_sq": _zeros(parameter)}


def _averaged(parameter: torch.nn.Parameter, state: State, spec: TrainSpec) -> torch.Tensor:
    """x of y = (1 - beta1) z + beta1 x, as the optimizer's own `eval` computes it."""
    return parameter.detach().lerp(state["z"], weight=1 - 1 / spec.adam_beta1)


KINDS: Mapping[Optimizer, Kind] = {
    Optimizer.ADAMW: Kind(make=_make_adamw, begin=_begin_adamw, tensors=("exp_avg", "exp_avg_sq")),
    Optimizer.ADAMW_8BIT: Kind(
        make=adamw_8bit.make, begin=adamw_8bit.begin, tensors=adamw_8bit.TENSORS, package="bitsandbytes"
    ),
    Optimizer.PRODIGY: Kind(
        make=_make_prodigy,
        begin=_begin_prodigy,
        tensors=("s", "p0", "exp_avg", "exp_avg_sq"),
        numbers={"d": 1e-6, "d_max": 1e-6, "d_numerator": 0.0, "k": 0},
        package="prodigyopt",
    ),
    Optimizer.ADAFACTOR: Kind(
        make=_make_adafactor,
        begin=_begin_adafactor,
        tensors=("exp_avg_sq_row", "exp_avg_sq_col"),
        package="transformers",
    ),
    Optimizer.SCHEDULE_FREE: Kind(
        make=_make_schedule_free,
        begin=_begin_schedule_free,
        tensors=("z", "exp_avg_sq"),
        numbers={"k": 0, "weight_sum": 0.0, "lr_max": -1.0},
        result=_averaged,
        package="schedulefree",
    ),
}


def optimizer_fingerprint(optimizer: Optimizer) -> dict[str, str]:
    """The version of the package that it comes from, where that is one of its own."""
    package = KINDS[optimizer].package
    return {} if package is None else {package: version(package)}
