"""AdamW over parameters that may be sharded, with a state that is only (updates, two moments of each parameter)."""

from collections.abc import Mapping

import torch
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from giornata.protocol.pretraining import Phase, Train

MOMENTS = ("exp_avg", "exp_avg_sq")


def learning_rate(phase: Phase, step: int) -> float:
    """Of optimizer step `step` of the phase, counted from 0: it rises in even parts to the phase's rate, which the
    last step of the warm-up has, and stays there. No step has a rate of 0: each row is trained once, so its step
    shall count."""
    return phase.learning_rate * min(1.0, (step + 1) / max(1, phase.lr_warmup_steps))


class Adam:
    """Every parameter has its moments from the start, so that all share one count of updates."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], train: Train, *, fused: bool) -> None:
        self._parameters, self._max_norm, self._fused = dict(parameters), train.max_grad_norm, fused
        self._torch = torch.optim.AdamW(
            self._parameters.values(),
            lr=0.0,
            betas=(train.adam_beta1, train.adam_beta2),
            eps=train.adam_epsilon,
            weight_decay=train.adam_weight_decay,
            fused=fused,
        )
        self.steps = 0
        self.begin(0)

    def begin(self, steps: int) -> None:
        """As after `steps` updates; the moments are zeros, to be filled in by whoever has them."""
        self.steps = steps
        for parameter in self._parameters.values():
            device = parameter.device if self._fused else "cpu"
            state = {"step": torch.tensor(float(steps), device=device)}
            self._torch.state[parameter] = state | {each: torch.zeros_like(parameter) for each in MOMENTS}

    def tensors(self) -> dict[str, torch.Tensor]:
        """`exp_avg.<parameter>` and `exp_avg_sq.<parameter>`: the moments themselves, sharded as the parameters."""
        return {
            f"{moment}.{name}": self._torch.state[parameter][moment]
            for name, parameter in self._parameters.items()
            for moment in MOMENTS
        }

    def norm(self) -> torch.Tensor:
        """Of the whole gradient, over all trainers."""
        return get_total_norm([each.grad for each in self._parameters.values() if each.grad is not None])

    def update(self, norm: torch.Tensor, rate: float) -> None:
        """Clip by the gradient's norm and step."""
        clip_grads_with_norm_(self._parameters.values(), self._max_norm, norm)
        for group in self._torch.param_groups:
            group["lr"] = rate
        self._torch.step()
        self.steps += 1

    def forget_gradients(self) -> None:
        """Free them."""
        self._torch.zero_grad(set_to_none=True)


def whole(norm: torch.Tensor) -> float:
    """The number. Waits for the device."""
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
