"""The optimizers that a job may choose: how each is made, and what its state consists of."""

import contextlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Protocol

import torch

from giornata.diffusion import adamw_8bit, came
from giornata.diffusion.came import Came
from giornata.diffusion.lion import Lion
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.optimisation import Optimizer
from giornata.protocol.training.optimizer_args import argument

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
    is not the parameter. `package` is where it comes from, if not from torch. `first_numbers` are the first values
    that a spec wants otherwise. `factored` are tensors that are rows or columns of a matrix only,
    `of_vectors` those that only parameters of one dimension have.
    """

    make: Make
    begin: Begin
    tensors: tuple[str, ...]
    numbers: Mapping[str, float | int] = field(default_factory=dict)
    result: Callable[[torch.nn.Parameter, State, TrainSpec], torch.Tensor] | None = None
    package: str | None = None
    first_numbers: Callable[[TrainSpec], Mapping[str, float | int]] | None = None
    factored: tuple[str, ...] = ()
    of_vectors: tuple[str, ...] = ()

    def copies(self, rank: int) -> float:
        """How many numbers it remembers for each number of an adapter of this rank, at the most. Rows and columns of
        an r x n matrix are r + n numbers, at most 2/r of the r n numbers of the matrix for each pair."""
        whole = set(self.tensors) - set(self.factored) - set(self.of_vectors)
        return len(whole) + len(self.factored) / 2 * min(2.0, 2.0 / rank)


def _zeros(parameter: torch.nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter, requires_grad=False)


def _as_in_adam(spec: TrainSpec) -> dict[str, Any]:
    """What all but Adafactor are told alike."""
    return {
        "lr": spec.learning_rate,
        "betas": argument(spec, "betas"),
        "eps": argument(spec, "eps"),
        "weight_decay": argument(spec, "weight_decay"),
    }


def _given(spec: TrainSpec, *names: str) -> dict[str, Any]:
    """Those of the arguments that the job was given."""
    return {name: argument(spec, name) for name in names if name in spec.optimizer_args}


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
            **{name: argument(spec, name) for name in ("decouple", "use_bias_correction", "safeguard_warmup")},
            **_given(spec, "beta3", "d0", "d_coef", "growth_rate"),
        )
    return made


def _first_of_prodigy(spec: TrainSpec) -> dict[str, float | int]:
    d0 = argument(spec, "d0")
    return {"d": d0, "d_max": d0}


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
        weight_decay=argument(spec, "weight_decay"),
        scale_parameter=argument(spec, "scale_parameter"),
        relative_step=False,
        **_given(spec, "clip_threshold", "decay_rate", "eps"),
    )


def _begin_adafactor(parameter: torch.nn.Parameter, step: int, *, on_cuda: bool) -> State:
    del on_cuda
    if parameter.ndim < 2:  # such as DoRA's magnitudes
        return {"step": step, "RMS": 0, "exp_avg_sq": _zeros(parameter)}
    rows, columns = parameter.shape[:-1], parameter.shape[:-2] + parameter.shape[-1:]
    sums = {"exp_avg_sq_row": parameter.new_zeros(rows), "exp_avg_sq_col": parameter.new_zeros(columns)}
    return {"step": step, "RMS": 0, **sums}


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
    """x of y = (1 - beta1) z + beta1 x, as the optimizer's own `eval` computes it."""
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
        first_numbers=_first_of_prodigy,
    ),
    Optimizer.ADAFACTOR: Kind(
        make=_make_adafactor,
        begin=_begin_adafactor,
        tensors=("exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq"),
        of_vectors=("exp_avg_sq",),
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
    Optimizer.LION: Kind(make=_make_lion, begin=_begin_lion, tensors=("exp_avg",)),
    Optimizer.CAME: Kind(
        make=_make_came, begin=_begin_came, tensors=came.TENSORS, factored=came.FACTORED, of_vectors=(came.SQUARES,)
    ),
}


def optimizer_fingerprint(optimizer: Optimizer) -> dict[str, str]:
    """The version of the package that it comes from, where that is one of its own."""
    package = KINDS[optimizer].package
    return {} if package is None else {package: version(package)}
