"""CAME (Luo et al., "CAME: confidence-guided adaptive memory efficient optimization", 2023, arXiv 2307.02047,
algorithm 2): Adafactor with a momentum, each number of which moves by how steady it is.

Shapes: a parameter's last two dimensions are rows and columns; of its second moments only the means of rows and of
columns are kept. A parameter of one dimension keeps them whole, and moves by its momentum.
"""

from typing import Any

import torch

MOMENT, SQUARES, RESIDUES = "exp_avg", "exp_avg_sq", "exp_avg_res"
ROW, COLUMN = "_row", "_col"
FACTORED = (f"{SQUARES}{ROW}", f"{SQUARES}{COLUMN}", f"{RESIDUES}{ROW}", f"{RESIDUES}{COLUMN}")
TENSORS = (MOMENT, SQUARES, *FACTORED)
"""A matrix keeps MOMENT and FACTORED, a vector MOMENT and SQUARES."""


def begin(parameter: torch.nn.Parameter) -> dict[str, Any]:
    """Return the state of a parameter before its first step."""
    found = {MOMENT: torch.zeros_like(parameter, requires_grad=False)}
    if parameter.ndim < 2:
        return found | {SQUARES: torch.zeros_like(parameter, requires_grad=False)}
    rows, columns = parameter.shape[:-1], parameter.shape[:-2] + parameter.shape[-1:]
    for moment in (SQUARES, RESIDUES):
        found |= {moment + ROW: parameter.new_zeros(rows), moment + COLUMN: parameter.new_zeros(columns)}
    return {name: tensor.detach() for name, tensor in found.items()}


class Came(torch.optim.Optimizer):
    """The optimizer CAME. Every parameter has its state, as `begin` makes it, before the first step. Nothing waits
    for the device."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        betas: tuple[float, float, float],
        eps: tuple[float, float],
        clip_threshold: float,
        weight_decay: float,
    ) -> None:
        told = {"betas": betas, "eps": eps, "clip_threshold": clip_threshold, "weight_decay": weight_decay}
        super().__init__(groups, told)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient."""
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _move(parameter, parameter.grad, self.state[parameter], group)


def _move(parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    beta1, beta2, beta3 = group["betas"]
    update = gradient * _inverse_root(state, SQUARES, gradient.square() + group["eps"][0], beta2)
    update /= (_rms(update) / group["clip_threshold"]).clamp(min=1.0)
    moment = state[MOMENT].lerp_(update, 1.0 - beta1)
    step = moment
    if parameter.ndim > 1:
        instability = (update - moment).square() + group["eps"][1]
        step = moment * _inverse_root(state, RESIDUES, instability, beta3)
    parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
    parameter.add_(step, alpha=-group["lr"])


def _inverse_root(state: dict[str, Any], moment: str, squares: torch.Tensor, beta: float) -> torch.Tensor:
    """Update a running mean of squares, and return 1 / sqrt of it, of the shape of the parameter or one that
    broadcasts to it."""
    if squares.ndim < 2:
        whole: torch.Tensor = state[moment].lerp_(squares, 1.0 - beta)
        return whole.rsqrt()
    row = state[moment + ROW].lerp_(squares.mean(dim=-1), 1.0 - beta)
    column = state[moment + COLUMN].lerp_(squares.mean(dim=-2), 1.0 - beta)
    of_rows = (row / row.mean(dim=-1, keepdim=True)).rsqrt().unsqueeze(-1)
    found: torch.Tensor = of_rows * column.rsqrt().unsqueeze(-2)
    return found


def _rms(tensor: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(tensor) / tensor.numel() ** 0.5


# ---- Lion (Chen et al., "Symbolic discovery of optimization algorithms", 2023, arXiv 2302.06675, algorithm 2)
#
# With momentum m, gradient g, weights w, rate r and decay d: the update is sign(b1 m + (1 - b1) g), w becomes
# w - r (update + d w), and m becomes b2 m + (1 - b2) g. Each number is treated for itself.


class Lion(torch.optim.Optimizer):
    """The optimizer Lion. The state of each parameter is `exp_avg`, of its shape. Waits for no result of the
    device."""

    def __init__(self, groups: list[dict[str, Any]], *, betas: tuple[float, float], weight_decay: float) -> None:
        super().__init__(groups, {"betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient and a state."""
        del closure
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            beta1, beta2 = group["betas"]
            gradients = [parameter.grad for parameter in parameters]
            momenta = [self.state[parameter]["exp_avg"] for parameter in parameters]
            updates = torch._foreach_lerp(momenta, gradients, 1.0 - beta1)
            torch._foreach_sign_(updates)
            torch._foreach_mul_(parameters, 1.0 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(parameters, updates, alpha=-group["lr"])
            torch._foreach_lerp_(momenta, gradients, 1.0 - beta2)
