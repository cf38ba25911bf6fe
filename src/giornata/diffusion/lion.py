"""Lion (Chen et al., "Symbolic discovery of optimization algorithms", 2023, arXiv 2302.06675, algorithm 2).

With momentum m, gradient g, weights w, rate r and decay d: the update is sign(b1 m + (1 - b1) g), w becomes
w - r (update + d w), and m becomes b2 m + (1 - b2) g. Each number is treated for itself.
"""

from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """The state of each parameter is `exp_avg`, of its shape. Waits for no result of the device."""

    def __init__(self, groups: list[dict[str, Any]], *, betas: tuple[float, float], weight_decay: float) -> None:
        super().__init__(groups, {"betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update of every parameter that has a gradient and a state."""
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
