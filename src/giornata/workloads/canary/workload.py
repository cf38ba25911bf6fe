"""The canary: does this device repeat itself, multiply rightly, and keep what is written to it?"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from giornata.protocol.pipe import Start
from giornata.protocol.specs import CanarySpec
from giornata.workloads.canary.arithmetic import Matmul, check_products, tflops
from giornata.workloads.canary.memory import Touch, bytes_to_check, check_memory
from giornata.workloads.canary.training import LARGE, SMALL, Bend, Run, check_twins, train
from giornata.workloads.interface import Outcome, Reporter, Stopped, Wish

CHECKED_SIDE = {"cuda": 2048, "cpu": 256}
MEASURED_SIDE = {"cuda": 4096, "cpu": 256}


def _leave(_: torch.Tensor) -> None:
    """A sound memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What a test can damage (products, predictions in the training, written memory) and make quick.

    `memory_bytes` is how much memory is checked: by default what `bytes_to_check` says.
    """

    matmul: Matmul = field(default=torch.matmul)
    bend: Bend = field(default=lambda _, prediction: prediction)
    touch: Touch = field(default=_leave)
    memory_bytes: int | None = None
    now_s: Callable[[], float] = field(default=time.perf_counter)


class CanaryWorkload:
    """Holds no model and writes no checkpoint: a canary that is stopped begins anew elsewhere.

    It takes at most half of the memory that is free, and gives it back: what is warm beside it stays.
    """

    def __init__(self, *, device: str, hardware: Hardware | None = None) -> None:
        self._device, self._hardware = torch.device(device), hardware or Hardware()

    def held(self) -> tuple[str, ...]:
        """Nothing."""
        return ()

    def run(self, start: Start, reporter: Reporter) -> Outcome:
        """Raises Stopped, and WorkloadFailed when the device does not do what every other one does."""
        spec = CanarySpec.model_validate(start.spec)
        summary = self._arithmetic(reporter) | self._memory(reporter) | self._training(spec.steps, reporter)
        return Outcome(step=spec.steps, summary=summary)

    def _arithmetic(self, reporter: Reporter) -> dict[str, float]:
        _begin(reporter, "multiplying")
        kind, hardware = self._device.type, self._hardware
        check_products(self._device, CHECKED_SIDE[kind], hardware.matmul)
        measured = tflops(self._device, MEASURED_SIDE[kind], hardware.matmul, now_s=hardware.now_s)
        return {"matmul_tflops": round(measured, 4)}

    def _memory(self, reporter: Reporter) -> dict[str, int]:
        _begin(reporter, "checking memory")
        checked = check_memory(
            self._device,
            self._hardware.memory_bytes or bytes_to_check(self._device),
            attend=lambda: _attend(reporter),
            touch=self._hardware.touch,
        )
        return {"memory_checked_bytes": checked}

    def _training(self, steps: int, reporter: Reporter) -> dict[str, float | bool]:
        def first(step: int, loss: float) -> None:
            reporter.progress(step, steps, {"loss": loss})
            _attend(reporter)

        def second(step: int, _: float) -> None:
            reporter.phase("training again", step, steps)
            _attend(reporter)

        _begin(reporter, "training")
        one, other = self._train(steps, first), self._train(steps, second)
        check_twins(one, other)
        return {"bit_equal": True, "first_loss": one.losses[0], "last_loss": one.losses[-1]}

    def _train(self, steps: int, told: Callable[[int, float], None]) -> Run:
        size = LARGE if self._device.type == "cuda" else SMALL
        return train(steps, self._device, size, bend=self._hardware.bend, told=told)


def _begin(reporter: Reporter, phase: str) -> None:
    reporter.phase(phase)
    _attend(reporter)


def _attend(reporter: Reporter) -> None:
    if reporter.wish() in {Wish.STOP, Wish.CHECKPOINT_AND_STOP}:
        raise Stopped
