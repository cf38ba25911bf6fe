"""Compiled kernels against plain ones, in the first pass of an attempt.

Compiled kernels round differently, so bytes cannot be compared. What is compared is the loss, and the length of the
difference of all gradients against the length of the plain gradients. When both agree, the pass by kernels counts,
and the job has the bits of a job with kernels. Otherwise the attempt begins anew without kernels, and the job has the
bits of a job without. So the check changes no result.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType

import torch

from giornata.workloads.train.graphs import Pass, copies_of, put_back

LOSS_TOLERANCE: Mapping[str, float] = MappingProxyType({"no": 1e-4, "bf16": 1e-2})
GRADIENT_TOLERANCE: Mapping[str, float] = MappingProxyType({"no": 1e-2, "bf16": 1e-1})
"""By the spec's mixed_precision, relative; docs/training.md promises them."""


class KernelsDiffer(Exception):
    """Compiled kernels gave something else than plain ones."""


class Trial:
    """Makes passes by `make`; the first one also with plain kernels, which `plain` switches on.

    The first pass raises KernelsDiffer when the two differ by more than the tolerances.
    """

    def __init__(
        self,
        make: Callable[[Pass], torch.Tensor],
        gradients: Callable[[], Sequence[torch.Tensor]],
        plain: Callable[[], AbstractContextManager[None]],
        *,
        mixed_precision: str,
    ) -> None:
        self._make, self._gradients, self._plain = make, gradients, plain
        self._loss, self._gradient = LOSS_TOLERANCE[mixed_precision], GRADIENT_TOLERANCE[mixed_precision]
        self._done = False

    def __call__(self, one: Pass) -> torch.Tensor:
        """The loss of the pass."""
        if self._done:
            return self._make(one)
        gradients = self._gradients()
        before = copies_of(gradients)
        loss = self._make(one)
        after = copies_of(gradients)
        put_back(gradients, before)
        with self._plain():
            plain_loss = one.plainly()
        self._compare(before, after, gradients, loss, plain_loss)
        put_back(gradients, after)
        self._done = True
        return loss

    def _compare(
        self,
        before: Sequence[torch.Tensor],
        after: Sequence[torch.Tensor],
        plain: Sequence[torch.Tensor],
        loss: torch.Tensor,
        plain_loss: torch.Tensor,
    ) -> None:
        ours = _flat(after) - _flat(before)
        theirs = _flat(plain) - _flat(before)
        apart = {
            "the loss": (float((loss - plain_loss).abs()), float(plain_loss.abs()), self._loss),
            "gradients": (float((ours - theirs).norm()), float(theirs.norm()), self._gradient),
        }
        for what, (distance, size, tolerance) in apart.items():
            if not distance <= tolerance * size:  # a NaN is no agreement
                message = f"{what} of the first pass by compiled kernels differ by {distance:.3g} from those of plain"
                raise KernelsDiffer(f"{message} ones, which are {size:.3g}; at most {tolerance:g} of that is allowed")


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten().float() for tensor in tensors])
