"""A small training that has to come out the same twice, to the bit."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional

from giornata.diffusion.draws.randomness import normal
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.workloads.canary.model import SEED, build, learned

LEARNING_RATE = 5e-3
LEAST_STEPS_TO_FALL = 5

Bend = Callable[[int, torch.Tensor], torch.Tensor]
"""The function by which a test damages the prediction of a step. On a sound device it does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanarySize:
    """The size of the small training."""

    channels: int
    pictures: int
    side: int


SMALL = CanarySize(channels=32, pictures=2, side=16)
LARGE = CanarySize(channels=128, pictures=4, side=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRun:
    """The result of a training: the loss of each step, and the weights after the last."""

    losses: tuple[float, ...]
    weights: dict[str, torch.Tensor]


def train(
    steps: int, device: torch.device, size: CanarySize, *, bend: Bend, told: Callable[[int, float], None]
) -> CanaryRun:
    """Train the adapters to answer as other adapters on the same base do. `told` gets each step's number, from 1, and
    its loss, and may raise to end it."""
    student = build(size.channels, device, adapters="student")
    optimizer = torch.optim.AdamW([each for each in student.parameters() if each.requires_grad], lr=LEARNING_RATE)
    losses = []
    for step, (inputs, target) in enumerate(_batches(steps, device, size), start=1):
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            prediction = bend(step, student(inputs))
        loss = functional.mse_loss(prediction.float(), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        told(step, losses[-1])
    return CanaryRun(losses=tuple(losses), weights=learned(student))


def check_twins(one: CanaryRun, other: CanaryRun) -> None:
    """Raise WorkloadFailed (NODE_DRIVER) unless both are equal to the bit, finite, and have learned something."""
    for step, (first, second) in enumerate(zip(one.losses, other.losses, strict=True), start=1):
        if not (math.isfinite(first) and math.isfinite(second)):
            raise _failed(f"the loss of step {step} is {first}, and the second time {second}: it is finite elsewhere")
        if first != second:
            raise _failed(f"the loss of step {step} is {first!r}, and the second time {second!r}")
    for name, weight in one.weights.items():
        if not torch.equal(weight, other.weights[name]):
            count = int((weight != other.weights[name]).sum())
            raise _failed(f"{count} of {weight.numel()} weights of {name} differ the second time")
    if len(one.losses) >= LEAST_STEPS_TO_FALL and not one.losses[-1] < one.losses[0]:
        raise _failed(f"the loss goes from {one.losses[0]:.6g} to {one.losses[-1]:.6g}; elsewhere it falls")


def _batches(steps: int, device: torch.device, size: CanarySize) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield always the same inputs, each with the teacher's answer."""
    shape = (size.pictures, 4, size.side, size.side)
    inputs = normal(SEED, "canary", "inputs", shape=shape).to(device)
    teacher = build(size.channels, device, adapters="teacher")
    with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        target = teacher(inputs).float()
    for _ in range(steps):
        yield inputs, target


def _failed(what: str) -> WorkloadFailed:
    return WorkloadFailed(Reason.NODE_DRIVER, f"the same small training went wrong on this device: {what}")
