"""One model's training loop, with checkpoints: a run that was killed goes on where it was, to the same bytes.

A stage's loss is a function of (plan, step, rank), so a checkpoint needs the weights, AdamW's moments, the average
and the step. It is one safetensors file: weight.<name>, exp_avg.<name>, exp_avg_sq.<name>, ema.<name>, and a header
with the step, the plan and the fingerprint of the machine.
"""

import json
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import safe_open
from torch import distributed

from giornata.diffusion.draws.determinism import fingerprint
from giornata.diffusion.optim.optimizer import WeightAverage
from giornata.diffusion.tensor_file import METADATA_KEY, canonical_json, safetensors_bytes, write_durably
from giornata.domain.errors import Fault, InvalidInput

BETAS = (0.9, 0.99)
WEIGHT_DECAY = 0.01
CLIP_NORM = 1.0
MOMENTS = ("exp_avg", "exp_avg_sq")
SAY_STEPS = 50
PATIENCE = timedelta(minutes=30)  # one process may wait while another writes or is stopped by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """The numbers of one pre-training. Batches are those of one process."""

    seed: int = 0
    processes: int = 2
    pictures: int = 24_000
    vae_steps: int = 4_000
    vae_batch: int = 12
    vae_lr: float = 1.5e-3
    unet_steps: int = 7_000
    unet_batch: int = 24
    unet_lr: float = 1.5e-3
    checkpoint_steps: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """A learning rate's course: a linear warm-up, then constant, then half a cosine down to 0."""

    steps: int
    warmup_steps: int
    constant_share: float  # of all steps, the warm-up's too

    def factor(self, step: int) -> float:
        """What the learning rate is multiplied by in `step`, counted from 0."""
        falls_from = self.constant_share * self.steps
        fall = max(0.0, (step - falls_from) / max(1.0, self.steps - falls_from))
        return min(1.0, (step + 1) / max(1, self.warmup_steps)) * 0.5 * (1 + math.cos(math.pi * fall))


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers(AbstractContextManager["Peers"]):
    """This process (`rank`, from 0) among `count`. They meet at `meeting`, a file that must not be there before.

    A single process needs no meeting and never waits.
    """

    rank: int = 0
    count: int = 1
    meeting: Path | None = None

    def __enter__(self) -> Self:
        if self.count > 1:
            distributed.init_process_group(
                "gloo", init_method=f"file://{self.meeting}", rank=self.rank, world_size=self.count, timeout=PATIENCE
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.count > 1:
            distributed.destroy_process_group()

    def average(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace every gradient by its mean over all processes."""
        if self.count == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        together = torch.cat([gradient.reshape(-1) for gradient in gradients])
        distributed.all_reduce(together)
        parts = together.div_(self.count).split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def interleave(self, mine: torch.Tensor) -> torch.Tensor:
        """Rows 0, 1, 2 … of which this process has every `count`-th, from its rank on. All have as many."""
        if self.count == 1:
            return mine
        parts = [torch.empty_like(mine) for _ in range(self.count)]
        distributed.all_gather(parts, mine.contiguous())
        return torch.stack(parts, dim=1).flatten(0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedPart:
    """What one stage trains and for how long. `loss(step)` is this process's part of the batch of that step."""

    name: str
    model: torch.nn.Module
    loss: Callable[[int], torch.Tensor]
    learning_rate: float
    ramp: Ramp
    ema_decay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDependencies:
    """Where a stage runs. `say` takes lines of progress, `clock_s` is monotonic."""

    plan: StagePlan
    peers: Peers
    folder: Path
    say: Callable[[str], None]
    clock_s: Callable[[], float]


class Stage:
    """Trains one model to the end of its course. Afterwards the model holds the average of its weights."""

    def __init__(self, course: TrainedPart, around: StageDependencies) -> None:
        self._course, self._around = course, around
        self._parameters = dict(course.model.named_parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(), lr=course.learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
        )
        self._average = WeightAverage(self._parameters, decay=course.ema_decay)

    @property
    def checkpoint(self) -> Path:
        """Where this stage keeps its state."""
        return self._around.folder / f"{self._course.name}.safetensors"

    def run(self, *, until: int | None = None) -> None:
        """Train from the last checkpoint to the end, or, as if killed there, `until` a step.

        Raises InvalidInput when the checkpoint is another plan's.
        """
        last = self._course.ramp.steps
        done = self._restore() if self.checkpoint.exists() else 0
        began_s, began = self._around.clock_s(), done
        self._course.model.train()
        while done < (last if until is None else until):
            loss = self._step(done)
            done += 1
            if done % SAY_STEPS == 0 or done == last:
                self._say(done, loss, (self._around.clock_s() - began_s) / (done - began))
            if self._around.peers.rank == 0 and (done % self._around.plan.checkpoint_steps == 0 or done == last):
                self._write(done)
        with torch.no_grad():
            for name, value in self._average.tensors.items():
                self._parameters[name].copy_(value)
        self._course.model.eval()

    def _step(self, step: int) -> torch.Tensor:
        rate = self._course.learning_rate * self._course.ramp.factor(step)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._course.loss(step)
        loss.backward()
        self._around.peers.average(self._parameters.values())
        torch.nn.utils.clip_grad_norm_(self._parameters.values(), CLIP_NORM)
        self._optimizer.step()
        self._average.update(step + 1)
        return loss.detach()

    def _say(self, done: int, loss: torch.Tensor, step_s: float) -> None:
        if self._around.peers.rank == 0:
            name, last = self._course.name, self._course.ramp.steps
            left_min = (last - done) * step_s / 60
            self._around.say(
                f"{name} {done}/{last}  loss {float(loss):.4f}  {step_s:.3f} s/step  {left_min:.0f} min left"
            )

    def _write(self, step: int) -> None:
        tensors = {f"weight.{name}": parameter for name, parameter in self._parameters.items()}
        for name, parameter in self._parameters.items():
            tensors |= {f"{moment}.{name}": self._optimizer.state[parameter][moment] for moment in MOMENTS}
        tensors |= {f"ema.{name}": value for name, value in self._average.tensors.items()}
        header = {"step": step, "plan": asdict(self._around.plan), "fingerprint": fingerprint(torch.device("cpu"))}
        write_durably(self.checkpoint, safetensors_bytes(tensors, {METADATA_KEY: canonical_json(header)}))

    @torch.no_grad()
    def _restore(self) -> int:
        with safe_open(self.checkpoint, framework="pt") as file:
            header = json.loads(file.metadata()[METADATA_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
        self._check(header)
        step = int(header["step"])
        for name, parameter in self._parameters.items():
            parameter.copy_(tensors[f"weight.{name}"])
            state = {moment: tensors[f"{moment}.{name}"] for moment in MOMENTS}
            self._optimizer.state[parameter] = {"step": torch.tensor(float(step)), **state}
        self._average.restore(tensors)
        if self._around.peers.rank == 0:
            self._around.say(f"{self._course.name} goes on from step {step}")
        return step

    def _check(self, header: dict[str, Any]) -> None:
        if header["plan"] != asdict(self._around.plan):
            message = "is of a pre-training with other numbers"
            hint = "give the same options as before, or remove the folder"
            raise InvalidInput([Fault(where=str(self.checkpoint), message=message, hint=hint)])
        if header["fingerprint"] != fingerprint(torch.device("cpu")) and self._around.peers.rank == 0:
            self._around.say("made by another machine or other versions: the result may differ in its last bits")
