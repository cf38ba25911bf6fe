"""Prodigy (Mishchenko & Defazio, 2023, arXiv 2306.06101), whose estimate of the rate stays on the device.

The arithmetic is that of the package prodigyopt 1.1, whose arguments have the same names here. The package reads two
numbers of each tensor back to the CPU in every step, and a GPU stands still meanwhile. Here the estimate `d` and what
belongs to it are float64 tensors of no dimension, and nothing is read. Two sums go over all parameters at once, so
whole rows may be given for the tensors in them. Sums are made in float64; the package makes those of each tensor in
float32. That is all that differs in numbers, but for one rounding of each update.

A group whose rate is zero does not move while others do; the package moves it by its old moments.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch

from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.optimizer_args import argument

TENSORS = ("s", "p0", "exp_avg", "exp_avg_sq")
FLAT = frozenset({"s", "p0"})
"""State tensors with one dimension, whatever the shape of the parameter."""
FIRST_D = 1e-6
NUMBERS = {"d": FIRST_D, "d_max": FIRST_D, "d_numerator": 0.0, "k": 0}
"""The numbers of each group, with their first values. `k` counts the updates."""
SETTINGS = (
    *("betas", "beta3", "eps", "weight_decay", "decouple", "use_bias_correction", "safeguard_warmup"),
    *("d0", "d_coef", "growth_rate"),
)


class Prodigy(torch.optim.Optimizer):
    """The optimizer Prodigy. `lr` is a factor of the rate that it finds by itself; all groups have the same, or
    zero."""

    def __init__(
        self,
        params: Any,
        *,
        lr: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.999),
        beta3: float | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decouple: bool = True,
        use_bias_correction: bool = False,
        safeguard_warmup: bool = False,
        d0: float = FIRST_D,
        d_coef: float = 1.0,
        growth_rate: float = math.inf,
    ) -> None:
        settings = {"betas": betas, "beta3": beta3, "eps": eps, "weight_decay": weight_decay, "decouple": decouple}
        settings |= {"use_bias_correction": use_bias_correction, "safeguard_warmup": safeguard_warmup}
        settings |= {"d0": d0, "d_coef": d_coef, "growth_rate": growth_rate}
        super().__init__(params, {"lr": lr, **settings, **NUMBERS, "d": d0, "d_max": d0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Update every parameter in groups with a rate. All have gradients and a state as `begin` makes it."""
        del closure
        group, lr = self.param_groups[0], max(group["lr"] for group in self.param_groups)
        if lr == 0.0:
            return
        d, d_max, d_numerator, k = self._numbers()
        beta1, beta2 = group["betas"]
        beta3 = math.sqrt(beta2) if group["beta3"] is None else group["beta3"]
        correction = (1 - beta2 ** (k + 1)).sqrt() / (1 - beta1 ** (k + 1)) if group["use_bias_correction"] else 1.0
        rate = d * lr * correction
        grown, size = self._follow(group, d, rate, beta3)
        moved = size > 0  # as long as every gradient was zero, nothing changes
        found = d_numerator * beta3 + grown * (d / group["d0"]) * rate
        d_hat = torch.where(moved, group["d_coef"] * found / size, d)
        new_d = torch.where(d == group["d0"], torch.maximum(d, d_hat), d)
        new_max = torch.maximum(d_max, d_hat)
        new_d = torch.minimum(new_max, new_d * group["growth_rate"])
        self._update(new_d, torch.where(moved, rate, torch.zeros_like(rate)))
        before, after = (d, d_max, d_numerator, k), (new_d, new_max, found, k + 1)
        kept = [torch.where(moved, new, old) for new, old in zip(after, before, strict=True)]
        for each in self.param_groups:
            each.update(zip(NUMBERS, kept, strict=True))

    def _numbers(self) -> tuple[torch.Tensor, ...]:
        """Return the numbers of the first group; all are alike. After a resume they are plain numbers, and go to the
        device."""
        group, device = self.param_groups[0], self.param_groups[0]["params"][0].device
        for name in NUMBERS:
            if not isinstance(group[name], torch.Tensor):  # filled in on the device: a copy would wait for it
                group[name] = torch.full((), float(group[name]), dtype=torch.float64, device=device)
        return tuple(group[name] for name in NUMBERS)

    def _learning(self) -> Iterator[tuple[dict[str, Any], torch.Tensor, torch.Tensor, dict[str, Any]]]:
        """Return (group, parameter, gradient, state) of groups with a rate."""
        for group in self.param_groups:
            for parameter in group["params"] if group["lr"] > 0.0 else ():
                yield group, parameter, parameter.grad, self.state[parameter]

    def _follow(
        self, first: dict[str, Any], d: torch.Tensor, rate: torch.Tensor, beta3: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Let moments and `s` follow the gradients. Returns the sums of gradient · (p0 - p) and of |s|."""
        grown, size = torch.zeros_like(d), torch.zeros_like(d)
        beta1, beta2 = first["betas"]
        of_mean, of_square = (d * (1 - beta1)).float(), (d * d * (1 - beta2)).float()
        of_s = (d / first["d0"] * (d if first["safeguard_warmup"] else rate)).float()
        for group, parameter, gradient, state in self._learning():
            if group["weight_decay"] != 0 and not group["decouple"]:
                gradient.add_(parameter, alpha=group["weight_decay"])
            flat = gradient.flatten()
            grown += (state["p0"] - parameter.flatten()).mul_(flat).sum(dtype=torch.float64)
            state["exp_avg"].mul_(beta1).addcmul_(gradient, of_mean)
            state["exp_avg_sq"].mul_(beta2).addcmul_(gradient * of_square, gradient)
            state["s"].mul_(beta3).addcmul_(flat, of_s)
            size += state["s"].abs().sum(dtype=torch.float64)
        return grown, size

    def _update(self, d: torch.Tensor, rate: torch.Tensor) -> None:
        """Move the parameters by the new `d` and the rate that the step began with."""
        for group, parameter, _, state in self._learning():
            ratio = state["exp_avg_sq"].sqrt().add_((d * group["eps"]).float())
            torch.div(state["exp_avg"], ratio, out=ratio)
            if group["weight_decay"] != 0 and group["decouple"]:
                parameter.addcmul_(parameter, (-group["weight_decay"] * rate).float())
            parameter.addcmul_(ratio, (-rate).float())
            state["step"] += 1


def make(groups: list[dict[str, Any]], spec: TrainSpec, *, fused: bool) -> torch.optim.Optimizer:
    """Make the optimizer over these groups."""
    del fused
    return Prodigy(
        groups,
        lr=spec.learning_rate,
        **{name: argument(spec, name) for name in SETTINGS},
    )


def first_numbers(spec: TrainSpec) -> dict[str, float]:
    """Return those of NUMBERS that the job's arguments set."""
    d0 = float(argument(spec, "d0"))
    return {"d": d0, "d_max": d0}


def begin(parameter: torch.nn.Parameter, step: int, *, on_cuda: bool) -> dict[str, Any]:
    """Return the state of a parameter that has not learned. `p0` is the parameter's first value."""
    del on_cuda
    first = parameter.detach().flatten().clone()
    moments = {name: torch.zeros_like(parameter, requires_grad=False) for name in ("exp_avg", "exp_avg_sq")}
    return {"step": step, "s": torch.zeros_like(first), "p0": first, **moments}
