"""Decides when to write a checkpoint, and when to read the losses. No bit of the result depends on either."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.base.unet_layers import layers_of, matmul_flops_per_s, training_flops
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.attempt import checkpoint_interval_s
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.results import FLEET, steps_with_sheets
from giornata.workloads.interface import Clock, Reporter
from giornata.workloads.train.device.memory_budget import adapter_shapes

# ---- gauges: metrics besides the loss. Nothing here waits for the device while steps run


@dataclass(slots=True, kw_only=True)
class StepGauges:
    """The gauges that are read beside the loss. `waited_s` is how long steps have waited for batches, in all;
    `flops_per_image` and `peak_flops_per_s` give MFU, where the device's rate is known; `vram_peak_bytes` reads the
    allocator's peak, where there is one, and `by_graph` how many passes CUDA graphs have made in all."""

    waited_s: Callable[[], float]
    flops_per_image: int = 0
    peak_flops_per_s: float | None = None
    vram_peak_bytes: Callable[[], int] | None = None
    by_graph: Callable[[], int] | None = None
    _seen_s: float = field(default=0.0, init=False)
    _seen_by_graph: int = field(default=0, init=False)

    def read(self, *, steps: int, images_per_s: float) -> dict[str, float]:
        """Return `data_wait_ms` per step, over the last `steps` of them; `mfu` from 0 to 1; `vram_peak_bytes`;
        `graph_passes` per step."""
        waited_s = self.waited_s()
        found = {"data_wait_ms": 1000.0 * (waited_s - self._seen_s) / steps}
        self._seen_s = waited_s
        if self.peak_flops_per_s is not None:
            found["mfu"] = images_per_s * self.flops_per_image / self.peak_flops_per_s
        if self.vram_peak_bytes is not None:
            found["vram_peak_bytes"] = float(self.vram_peak_bytes())
        if self.by_graph is not None:
            by_graph = self.by_graph()
            found["graph_passes"] = (by_graph - self._seen_by_graph) / steps
            self._seen_by_graph = by_graph
        return found


def gauges_of(
    base: BaseModel,
    spec: TrainSpec,
    *,
    waited_s: Callable[[], float],
    peak_flops_per_s: float | None,
    by_graph: Callable[[], int] | None = None,
) -> StepGauges:
    """Return the gauges of one attempt. The high-water mark is set back."""
    layers = layers_of(base.unet, spec.resolution, max_token_length=spec.max_token_length)
    ranks = {name: adapter_shape.rank for name, adapter_shape in adapter_shapes(layers, spec).items()}
    on_cuda = base.device.type == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(base.device)
    return StepGauges(
        waited_s=waited_s,
        flops_per_image=training_flops(layers, ranks),
        peak_flops_per_s=peak_flops_per_s,
        vram_peak_bytes=(lambda: torch.cuda.max_memory_allocated(base.device)) if on_cuda else None,
        by_graph=by_graph if on_cuda else None,
    )


def peak_of(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the measured rate of a GPU's matrix units; None for a CPU, whose rate depends on what else runs
    there."""
    return matmul_flops_per_s(device, dtype) if device.type == "cuda" else None


FIRST_COST_S = 1.0
"""The assumed cost of a checkpoint before the first was measured."""

NORMS_SCALED = "norms_scaled"
"""The metric of jobs with scale_weight_norms: how many layers the step left too long."""

LOSSES_EVERY_S = 0.5
LOSSES_EVERY_STEPS = 8


class CheckpointSchedule:
    """The times at which checkpoints are due: every so many steps, or by what checkpoints cost and interruptions
    lose."""

    def __init__(self, spec: TrainSpec, *, mtbi_s: float, max_at_risk_s: float, clock: Clock) -> None:
        self._every, self._clock, self._spec = spec.checkpointing_steps, clock, spec
        self._mtbi_s, self._max_at_risk_s = mtbi_s, max_at_risk_s
        self._cost_s, self._last_s = FIRST_COST_S, clock()
        self._busy_s = 0.0
        self._hastened = False

    def due(self, step: int) -> bool:
        """Return True when a checkpoint is due after this step; `step` counts those that are done."""
        if self._hastened or self._drawn_elsewhere(step):
            return True
        if self._every != "auto":
            return step % self._every == 0
        interval_s = checkpoint_interval_s(
            cost_s=self._cost_s, mtbi_s=self._mtbi_s, max_at_risk_s=self._max_at_risk_s
        )
        return self._clock() - self._last_s >= max(interval_s, self._busy_s)

    def _drawn_elsewhere(self, step: int) -> bool:
        """Return True when another node draws the sample images of this step, from a checkpoint."""
        spec = self._spec
        return spec.validation_by == FLEET and step in steps_with_sheets(spec.validation_steps, spec.max_train_steps)

    def begun(self, cost_s: float) -> None:
        """Note that a checkpoint was begun just now, and held the steps up for `cost_s`."""
        self._cost_s, self._last_s, self._hastened = cost_s, self._clock(), False

    def hasten(self) -> None:
        """Make the next checkpoint due at the end of this step: later attempts must know what happened."""
        self._hastened = True

    def written(self, busy_s: float | None) -> None:
        """Note that the writing of a checkpoint has ended and took this long; None: none has. The next is not begun
        sooner."""
        if busy_s is not None:
            self._busy_s = busy_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    step: int
    learning_rate: float
    loss: torch.Tensor
    scaled: torch.Tensor | None
    more: Mapping[str, float]


class StepMeter:
    """Reports every step, but waits for the device only now and then.

    Reading a loss makes the CPU wait for the GPU, which then idles while the next step is being prepared. On CUDA
    the losses are therefore fetched together, after LOSSES_EVERY_STEPS steps or LOSSES_EVERY_S seconds; that also
    bounds how far the CPU runs ahead. Elsewhere a loss costs nothing and is reported at once.
    `losses` holds those of all steps so far, and is added to.
    """

    def __init__(
        self,
        reporter: Reporter,
        *,
        spec: TrainSpec,
        images_per_step: int,
        device: torch.device,
        clock: Clock,
        gauges: StepGauges,
        losses: list[float],
    ) -> None:
        self._gauges, self.losses = gauges, losses
        self._reporter, self._spec, self._images_per_step, self._clock = reporter, spec, images_per_step, clock
        self._limit = LOSSES_EVERY_STEPS if device.type == "cuda" else 1
        self._pending: list[_Pending] = []
        self._since_s = clock()

    def add(
        self,
        step: int,
        *,
        learning_rate: float,
        loss: torch.Tensor,
        scaled: torch.Tensor | None = None,
        more: Mapping[str, float] | None = None,
    ) -> None:
        """Add step number `step` (from 1), which is under way, with this mean loss, and so many layers `scaled`
        (scalars on the device). `more` is what else is known of it."""
        pending = _Pending(step=step, learning_rate=learning_rate, loss=loss, scaled=scaled, more=more or {})
        self._pending.append(pending)
        if len(self._pending) >= self._limit or self._clock() - self._since_s >= LOSSES_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Report what is pending. Raises WorkloadFailed(BAD_SPEC) at the first loss that is not a number."""
        if not self._pending:
            return
        losses = torch.stack([pending.loss for pending in self._pending]).tolist()
        scaled = [pending.scaled for pending in self._pending if pending.scaled is not None]
        counts = torch.stack(scaled).tolist() if scaled else []
        step_s = max(1e-9, (self._clock() - self._since_s) / len(losses))
        images_per_s = self._images_per_step / step_s
        read = self._gauges.read(steps=len(losses), images_per_s=images_per_s)
        for number, (pending, loss) in enumerate(zip(self._pending, losses, strict=True)):
            if not math.isfinite(loss):
                raise diverged(self._spec, pending.step, f"the loss is {loss}")
            self.losses.append(loss)
            metrics = {
                "loss": loss,
                "learning_rate": pending.learning_rate,
                "step_ms": step_s * 1000.0,
                "images_per_s": images_per_s,
                **read,
                **({NORMS_SCALED: float(counts[number])} if counts else {}),
                **pending.more,
            }
            self._reporter.progress(pending.step, self._spec.max_train_steps, metrics)
        self._pending.clear()
        self._since_s = self._clock()

    def leave_out(self, seconds: float) -> None:
        """Subtract so much from the time since the last flush."""
        self._since_s += seconds

    def resume(self) -> None:
        """Leave out of account the time since the last flush: it went into something else than steps."""
        self._since_s = self._clock()


def diverged(spec: TrainSpec, step: int, what: str) -> WorkloadFailed:
    """Return the failure of a training that cannot recover: the next node would compute the same."""
    rates = f"learning_rate {spec.learning_rate:g}"
    if spec.train_text_encoder:
        rates += f", text_encoder_lr {spec.text_encoder_lr:g}"
    message = f"training diverged at step {step}: {what}. The usual cause is too high a learning rate ({rates})"
    return WorkloadFailed(Reason.BAD_SPEC, message)


def images_per_step(spec: TrainSpec) -> int:
    """Return the pictures that one optimizer step looks at, class pictures included."""
    halves = 2 if spec.with_prior_preservation and not spec.prior_prediction else 1
    return spec.train_batch_size * spec.gradient_accumulation_steps * halves
