"""The optimizers of pre-training, and the average of the weights (EMA), which is what a run makes.

The whole state of an optimizer is the number of updates and some tensors of each parameter.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from giornata.diffusion.draws.schedule import factor
from giornata.diffusion.optim import adamw_8bit
from giornata.protocol.pretraining import Phase, PretrainOptimizer, Train

MOMENTS = ("exp_avg", "exp_avg_sq")
BUFFER = "momentum_buffer"
EMA = "ema."
Parameters = Mapping[str, torch.nn.Parameter]


def learning_rate(phase: Phase, step: int, *, steps: int) -> float:
    """The rate of optimizer step `step` of the phase, counted from 0, where the phase has `steps`.

    It is diffusers' schedule over one step more, from its second step on, so that no step has a rate of 0: each row
    is trained once, and its step counts. Later steps than expected, after a restart, have the rate of the last one.
    """
    place, rate = min(step, steps - 1) + 1, phase.learning_rate
    return rate * factor(phase.lr_scheduler, place, warmup=phase.lr_warmup_steps, total=steps + 1, rate=rate)


class TrainingOptimizer:
    """Every parameter has its tensors from the start, so that all share one count of updates."""

    def __init__(self, parameters: Parameters, train: Train, *, fused: bool) -> None:
        self._parameters, self._max_norm, self._fused = dict(parameters), train.max_grad_norm, fused
        muon = train.optimizer is PretrainOptimizer.MUON
        matrices = {name: each for name, each in self._parameters.items() if muon and each.ndim == 2}
        others = [each for name, each in self._parameters.items() if name not in matrices]
        self._parts = [_adamw(others, train, fused=fused)]
        if muon:
            made = torch.optim.Muon(
                matrices.values(), lr=0.0, weight_decay=train.adam_weight_decay, adjust_lr_fn="match_rms_adamw"
            )
            self._parts.append(made)
        self.steps = 0
        self.begin(0)

    def begin(self, steps: int) -> None:
        """Make the state of `steps` updates. Its tensors are zeros, which the caller fills in."""
        self.steps = steps
        for part in self._parts:
            for group in part.param_groups:
                for parameter in group["params"]:
                    part.state[parameter] = self._zeros(part, parameter)

    def tensors(self) -> dict[str, torch.Tensor]:
        """`exp_avg.<parameter>` and its like: the state's own tensors, sharded as the parameters."""
        states = {parameter: state for part in self._parts for parameter, state in part.state.items()}
        return {
            f"{kind}.{name}": states[parameter][kind]
            for name, parameter in self._parameters.items()
            for kind in (*MOMENTS, BUFFER, *adamw_8bit.TENSORS)
            if kind in states[parameter]
        }

    def norm(self) -> torch.Tensor:
        """Norm of the whole gradient, over all trainers."""
        return get_total_norm([each.grad for each in self._parameters.values() if each.grad is not None])

    def update(self, norm: torch.Tensor, rate: float) -> None:
        clip_grads_with_norm_(self._parameters.values(), self._max_norm, norm)
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
        self.steps += 1

    def forget_gradients(self) -> None:
        for part in self._parts:
            part.zero_grad(set_to_none=True)

    def _zeros(self, part: torch.optim.Optimizer, parameter: torch.nn.Parameter) -> dict[str, Any]:
        if isinstance(part, torch.optim.Muon):
            return {BUFFER: torch.zeros_like(parameter)}
        if not isinstance(part, torch.optim.AdamW):
            return adamw_8bit.begin(parameter, self.steps, on_cuda=parameter.is_cuda)
        step = torch.tensor(float(self.steps), device=parameter.device if self._fused else "cpu")
        return {"step": step, **{each: torch.zeros_like(parameter) for each in MOMENTS}}


def _adamw(parameters: Iterable[torch.nn.Parameter], train: Train, *, fused: bool) -> torch.optim.Optimizer:
    betas, decay = (train.adam_beta1, train.adam_beta2), train.adam_weight_decay
    given: dict[str, Any] = {"lr": 0.0, "betas": betas, "eps": train.adam_epsilon, "weight_decay": decay}
    if train.optimizer is not PretrainOptimizer.ADAMW_8BIT:
        return torch.optim.AdamW(parameters, fused=fused, **given)
    import bitsandbytes

    made: torch.optim.Optimizer = bitsandbytes.optim.AdamW8bit(parameters, min_8bit_size=adamw_8bit.SMALLEST, **given)
    return made


def whole(norm: torch.Tensor) -> float:
    """The norm as a number. Waits for the device."""
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this trainer's part of a sharded tensor; a whole tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Averages:
    """Begins with the weights as they are at its first update, `steps` updates ago. After that the average moves
    towards the weights by 1 - decay, where decay = min(given, (1 + n) / (10 + n)) at the n-th: as diffusers'
    EMAModel, so that the beginning is soon forgotten. Float32, where the weights are."""

    def __init__(self, parameters: Mapping[str, torch.Tensor], *, decay: float) -> None:
        self._parameters, self._decay = dict(parameters), decay
        self._tensors: dict[str, torch.Tensor] = {}
        self.steps = 0

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The averages by the parameters' names, sharded like them; empty before the first update."""
        return self._tensors

    @torch.no_grad()
    def begin(self, steps: int) -> None:
        """Make the averages of `steps` updates. The caller fills in their values."""
        self._tensors = {name: each.detach().clone() for name, each in self._parameters.items()} if steps else {}
        self.steps = steps

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the weights, after a step."""
        if not self.steps:
            self.begin(1)
            return
        decay = min(self._decay, (1 + self.steps) / (10 + self.steps))
        averages = [local(each) for each in self._tensors.values()]
        weights = [local(each.detach()) for each in self._parameters.values()]
        torch._foreach_lerp_(averages, weights, 1.0 - decay)
        self.steps += 1

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Give the model the averages for its weights, within the block. Before the first update nothing changes."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, average in self._tensors.items():
            mine, its = local(average), local(self._parameters[name].detach())
            kept = its.clone()
            its.copy_(mine)
            mine.copy_(kept)
