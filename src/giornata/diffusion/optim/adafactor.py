"""Adafactor (Shazeer & Stern, 2018, arXiv 1804.04235) with a rate of the job's, for all tensors of one shape at once.

The arithmetic is that of transformers' Adafactor with `relative_step=False`. Second
moments are held by row and column of each matrix, and each matrix is clipped by a mean of its own. So the numbers of
a job cannot be taken as one row. Tensors of one shape are stacked instead: each operation is made once for a shape,
not once for a tensor. On the CPU the bits are those of transformers, but for roundings with `scale_parameter`; a GPU
may sum a stack in another order.

Shapes: N tensors of one shape.
"""

import math
from collections import defaultdict
from typing import Any

import torch

from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.optimizer_args import argument

ROWS, COLUMNS = TENSORS = ("exp_avg_sq_row", "exp_avg_sq_col")
"""Means of the squared gradients over the last dimension and over the last but one. Of a vector ROWS is the whole."""
SETTINGS = ("eps", "clip_threshold", "decay_rate", "weight_decay", "scale_parameter")


class Adafactor(torch.optim.Optimizer):
    """The optimizer Adafactor; its arguments have the names of transformers'. The second number of `eps` counts with
    `scale_parameter` only."""

    def __init__(
        self,
        params: Any,
        *,
        lr: float,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        weight_decay: float = 0.0,
        scale_parameter: bool = False,
    ) -> None:
        settings = {"eps": eps, "clip_threshold": clip_threshold, "decay_rate": decay_rate}
        settings |= {"scale_parameter": scale_parameter}
        super().__init__(params, {"lr": lr, **settings, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Update every parameter once. All have gradients and a state as `begin` makes it."""
        del closure
        for group in self.param_groups:
            alike: dict[tuple[Any, ...], list[torch.Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                alike[parameter.shape, self.state[parameter]["step"]].append(parameter)
            for (_, done), parameters in alike.items():
                self._step(group, parameters, done + 1)

    def _step(self, group: dict[str, Any], parameters: list[torch.Tensor], step: int) -> None:
        """Update parameters of one shape, which have made equally many steps."""
        gradients_N = torch.stack([parameter.grad for parameter in parameters if parameter.grad is not None])
        squares_N = gradients_N.square().add_(group["eps"][0])
        kept = 1.0 - math.pow(step, group["decay_rate"])
        if parameters[0].dim() < 2:
            update_N = self._followed(ROWS, parameters, squares_N, kept).rsqrt()
        else:
            rows_N = self._followed(ROWS, parameters, squares_N.mean(dim=-1), kept)
            columns_N = self._followed(COLUMNS, parameters, squares_N.mean(dim=-2), kept)
            of_row = (rows_N / rows_N.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
            update_N = torch.mul(of_row, columns_N.unsqueeze(-2).rsqrt())
        update_N.mul_(gradients_N)
        update_N.div_((_sizes(update_N) / group["clip_threshold"]).clamp_(min=1.0)).mul_(group["lr"])
        if group["scale_parameter"]:
            weights_N = torch.stack([parameter.detach() for parameter in parameters])
            scales_N = _sizes(weights_N).clamp_(min=group["eps"][1])
            update_N.mul_(scales_N).add_(weights_N.mul_(scales_N), alpha=group["weight_decay"] * group["lr"])
        elif group["weight_decay"] != 0:
            torch._foreach_add_(parameters, parameters, alpha=-group["weight_decay"] * group["lr"])
        torch._foreach_sub_(parameters, list(update_N.unbind()))
        for parameter in parameters:
            self.state[parameter]["step"] = step

    def _followed(
        self, name: str, parameters: list[torch.Tensor], found_N: torch.Tensor, kept: float
    ) -> torch.Tensor:
        """Let the running means of this name follow the new values. Returns them, stacked."""
        means = [self.state[parameter][name] for parameter in parameters]
        means_N = torch.stack(means).mul_(kept).add_(found_N, alpha=1.0 - kept)
        torch._foreach_copy_(means, list(means_N.unbind()))
        return means_N


def _sizes(tensors_N: torch.Tensor) -> torch.Tensor:
    """Return the root mean square of each, in as many dimensions as the tensors have."""
    lengths_N = torch.linalg.vector_norm(tensors_N.flatten(1), dim=1) / math.sqrt(tensors_N[0].numel())
    return lengths_N.view(-1, *[1] * (tensors_N.dim() - 1))


def make(groups: list[dict[str, Any]], spec: TrainSpec, *, fused: bool) -> torch.optim.Optimizer:
    """Make the optimizer over these groups."""
    del fused
    return Adafactor(groups, lr=spec.learning_rate, **{name: argument(spec, name) for name in SETTINGS})


def begin(parameter: torch.nn.Parameter, step: int, *, on_cuda: bool) -> dict[str, Any]:
    """Return the state of a parameter that has not learned."""
    del on_cuda
    shape = parameter.shape
    if len(shape) < 2:
        return {"step": step, ROWS: parameter.new_zeros(shape)}
    return {
        "step": step,
        ROWS: parameter.new_zeros(shape[:-1]),
        COLUMNS: parameter.new_zeros(shape[:-2] + shape[-1:]),
    }
