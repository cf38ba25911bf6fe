"""The first pass by compiled kernels against the same pass by plain ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from giornata.diffusion.base.cuda_graphs import Tensors
from giornata.diffusion.base.regional import plainly
from giornata.workloads.train.device.compiling import GRADIENT_TOLERANCE, LOSS_TOLERANCE, KernelsDiffer, KernelTrial
from giornata.workloads.train.device.graphs import Pass


class InexactLayer:
    """One weight, whose "kernels" are off by `loss` and `gradient`, relatively."""

    def __init__(self, *, loss: float = 0.0, gradient: float = 0.0) -> None:
        self.loss_off, self.gradient_off = loss, gradient
        self.weight = torch.tensor([0.5, -2.0], requires_grad=True)
        self.weight.grad = torch.tensor([7.0, 7.0])  # of a pass before this one
        self.compiled, self.passes = True, list[bool]()

    @contextmanager
    def plain(self) -> Iterator[None]:
        self.compiled = False
        yield
        self.compiled = True

    def run(self, inputs: Tensors) -> torch.Tensor:
        self.passes.append(self.compiled)
        loss = (self.weight * inputs["x"]).square().sum()
        gradient = torch.autograd.grad(loss, self.weight)[0]
        self.weight.grad += gradient * (1.0 + self.gradient_off * self.compiled)
        return (loss * (1.0 + self.loss_off * self.compiled)).detach()

    def trial(self, mixed_precision: str = "no") -> KernelTrial:
        return KernelTrial(Pass.plainly, lambda: [self.weight.grad], self.plain, mixed_precision=mixed_precision)

    def one_pass(self) -> Pass:
        return Pass(inputs={"x": torch.tensor([1.0, 3.0])}, run=self.run)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_kernels_that_agree_count_and_are_asked_alone_from_then_on(precision: str) -> None:
    layer = InexactLayer(loss=LOSS_TOLERANCE[precision] * 0.9, gradient=GRADIENT_TOLERANCE[precision] * 0.9)
    alone = InexactLayer(loss=layer.loss_off, gradient=layer.gradient_off)
    trial = layer.trial(precision)
    for _ in range(2):
        assert torch.equal(trial(layer.one_pass()), alone.one_pass().plainly())
        assert torch.equal(layer.weight.grad, alone.weight.grad)
    assert layer.passes == [True, True, False, True]


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_kernels_that_give_something_else_are_not_used(what: str, precision: str) -> None:
    off = {"loss": LOSS_TOLERANCE, "gradient": GRADIENT_TOLERANCE}[what][precision] * 1.1
    layer = InexactLayer(**{what: off})
    with pytest.raises(KernelsDiffer, match=f"{what}.* of the first pass by compiled kernels differ by"):
        layer.trial(precision)(layer.one_pass())


@pytest.mark.parametrize("off", [{"loss": float("nan")}, {"gradient": float("inf")}])
def test_no_number_is_no_agreement(off: dict[str, float]) -> None:
    layer = InexactLayer(**off)
    with pytest.raises(KernelsDiffer):
        layer.trial()(layer.one_pass())


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_kernels_that_do_not_repeat_their_bytes_are_not_used(what: str) -> None:
    class Drifting(InexactLayer):
        """Kernels whose second pass differs in the last bit of a float."""

        def run(self, inputs: Tensors) -> torch.Tensor:
            setattr(self, f"{what}_off", 2.0**-22 * len(self.passes))
            return super().run(inputs)

    drifting = Drifting()
    with pytest.raises(KernelsDiffer, match="other bytes when it is made a second time"):
        drifting.trial()(drifting.one_pass())


def test_kernels_that_give_another_sign_to_a_zero_are_not_used() -> None:
    class Signing(InexactLayer):
        """Kernels whose second pass gives -0.0 where the first gives 0.0, which compare as equal."""

        def run(self, inputs: Tensors) -> torch.Tensor:
            self.passes.append(self.compiled)
            assert self.weight.grad is not None
            self.weight.grad.fill_(-0.0 if len(self.passes) == 2 else 0.0)
            return torch.tensor(1.0)

    signing = Signing()
    with pytest.raises(KernelsDiffer, match="other bytes when it is made a second time"):
        signing.trial()(signing.one_pass())


def test_regions_run_plainly_for_a_while_and_keep_their_kernels() -> None:
    unet: Any = nn.Sequential(nn.Linear(1, 1))
    kernels = partial(int)
    unet[0]._compiled_call_impl = kernels
    with plainly(unet, (nn.Linear,)):
        assert unet[0]._compiled_call_impl is None
    assert unet[0]._compiled_call_impl is kernels
