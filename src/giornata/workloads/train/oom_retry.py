"""Repeats a step that ran out of memory, with a smaller memory plan, and then fails."""

import gc
from collections.abc import Callable
from types import TracebackType
from typing import Self

import torch

from giornata.diffusion.base.memory import in_gib
from giornata.diffusion.base.recompute import set_recompute
from giornata.domain.errors import Fault, WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.workloads.interface import Reporter
from giornata.workloads.train.device.graphs import Graphs
from giornata.workloads.train.device.layout import SMALLER_FOOTPRINT, MemoryLayout
from giornata.workloads.train.device.memory_budget import MemoryPlan, below_on, fallbacks
from giornata.workloads.train.faults import reason_of
from giornata.workloads.train.steps import PassFeed, Stepper

ENOUGH = 0.5
"""There is one retry, so it must help: at most this part of the activations is to be left."""


class OomRetry:
    """Carries out steps, and repeats one with a smaller plan when memory gives out.

    While losses and gradients are computed neither weights nor moments change: whatever was computed of the step is
    thrown away, and the step is done again from its beginning. Should memory give out in the optimizer, there are no
    activations left that could be made smaller, so that is not tried again.

    `feeds` begins a feed at a step, with so many rows; `changed` hears of a new memory plan before the step that uses
    the plan. As a context manager it ends its feed. CUDA graphs hold memory of their own, so they are given up first,
    which does not count as the retry.
    """

    def __init__(
        self,
        stepper: Stepper,
        layout: MemoryLayout,
        feeds: Callable[[int, int], PassFeed],
        *,
        first_step: int,
        reporter: Reporter,
        changed: Callable[[int, MemoryPlan], None],
        graphs: Graphs | None = None,
    ) -> None:
        self._stepper, self._layout, self.memory_plan = stepper, layout, layout.memory_plan
        self._reporter, self._changed = reporter, changed
        self._lowered, self._graphs = False, graphs
        self._feeds, self._feed = feeds, feeds(first_step, layout.memory_plan.rows)
        self._waited_s = 0.0

    @property
    def waited_s(self) -> float:
        """Return how long steps have waited for batches, in all."""
        return self._waited_s + self._feed.waited_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._feed.__exit__(kind, error, trace)

    def step(self, step: int) -> tuple[torch.Tensor, float]:
        """Make optimizer step number `step`, from 0: return its mean loss and its learning rate, as Stepper gives
        them.

        Raises WorkloadFailed when memory gives out again, or when nothing can be made smaller: BAD_SPEC, for the same
        job on another card of this size would end in the same way; NODE_VRAM when another process holds memory here.
        """
        try:
            loss = self._stepper.gradients(step, self._feed)
        except RuntimeError as error:
            if reason_of(error) is not Reason.NODE_VRAM:
                raise
            said = str(error)
        else:
            return loss, self._stepper.update(step)
        # Outside of the except clause: with the exception went its traceback, whose frames held the activations.
        self._make_room(step, said)
        return self.step(step)

    def _make_room(self, step: int, said: str) -> None:
        self._stepper.forget_gradients()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if self._graphs is not None and self._graphs.release(f"out of memory in step {step + 1}: {said}"):
            self._begin_again(step)
            return
        smaller = self._smaller()
        if self._lowered or smaller is None:
            raise self._too_large(step, said)
        self._lowered = True
        data = {"step": step, "from": self.memory_plan.in_words(), "to": smaller.in_words(), "message": said[:500]}
        self._reporter.notice(SMALLER_FOOTPRINT, data)
        self._turn_to(step, smaller)

    def repeat(self, step: int, memory_plan: MemoryPlan) -> None:
        """Make the steps from this one on with the plan that an audited machine turned to before it."""
        if memory_plan != self.memory_plan:
            if self._graphs is not None:
                self._graphs.release(f"another memory plan from step {step + 1} on")
            self._turn_to(step, memory_plan)

    def _turn_to(self, step: int, memory_plan: MemoryPlan) -> None:
        self._changed(step, memory_plan)
        self.memory_plan = memory_plan
        self._begin_again(step)
        set_recompute(self._stepper.base.unet, memory_plan.recompute)

    def _begin_again(self, step: int) -> None:
        self._waited_s += self._feed.waited_s
        self._feed.__exit__(None, None, None)
        self._feed = self._feeds(step, self.memory_plan.rows)

    def _smaller(self) -> MemoryPlan | None:
        """Return the first plan that is expected to leave at most half of the activations; else the smallest,
        if any."""
        below = below_on(fallbacks(self._stepper.spec), self.memory_plan)
        sizes = self._layout.sizes
        most_bytes = ENOUGH * sizes.activation_bytes(self.memory_plan)
        enough = (plan for plan in below if sizes.activation_bytes(plan) <= most_bytes)
        return next(enough, below[-1] if below else None)

    def _too_large(self, step: int, said: str) -> WorkloadFailed:
        need_bytes, budget = self._layout.sizes.training_bytes(self.memory_plan), self._layout.budget_now()
        again = ", again with a smaller footprint" if self._lowered else ""
        message = f"out of GPU memory in step {step + 1}{again} ({self.memory_plan.in_words()}): "
        message += f"the job is expected to take {in_gib(need_bytes)}"
        if budget is not None:
            message += f", and the device has {in_gib(budget.total_bytes)}"
            if budget.taken_by_others:
                message += f", of which other processes hold {in_gib(budget.others_bytes)}"
                return WorkloadFailed(Reason.NODE_VRAM, f"{message}. {said}"[:3500])
        fault = Fault(where="spec", message=message, hint="lower resolution, train_batch_size or rank")
        return WorkloadFailed(Reason.BAD_SPEC, f"{fault}. {said}"[:3500], (fault,))
