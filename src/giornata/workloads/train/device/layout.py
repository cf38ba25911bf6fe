"""Chooses an attempt's layout in the device's memory: what the spec asked for, made smaller until it fits."""

from collections.abc import Callable
from dataclasses import dataclass

from giornata.diffusion.base.memory import in_gib
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.base.recompute import Recompute
from giornata.diffusion.files.checkpoint import Header
from giornata.diffusion.optim.optimizer_kinds import KINDS
from giornata.protocol.node.joint import OPTIMIZERS, rank_ceiling
from giornata.protocol.specs import TrainSpec
from giornata.workloads.interface import Reporter
from giornata.workloads.train.device.memory_budget import (
    BudgetOf,
    MemoryBudget,
    MemoryPlan,
    MemorySizes,
    fitted,
    from_fingerprint,
    sizes_of,
)

SMALLER_FOOTPRINT = "smaller-footprint"
"""The notice that goes into the job's events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLayout:
    """The memory plan that the attempt begins with, the sizes behind it, and a look at the device as it is now."""

    memory_plan: MemoryPlan
    sizes: MemorySizes
    budget_now: Callable[[], MemoryBudget | None]


def lay_out(
    base: BaseModel, spec: TrainSpec, budget_of: BudgetOf, reporter: Reporter, header: Header | None
) -> MemoryLayout:
    """Choose the memory plan: never larger than that of the checkpoint `header`, for the bits depend on it.

    Raises WorkloadFailed when the job does not fit; see `fitted`.
    """
    sizes, budget = sizes_of(base, spec), budget_of(base.device)
    first = MemoryPlan.asked_for(spec) if header is None else from_fingerprint(header.fingerprint, spec)
    memory_plan = fitted(spec, sizes, budget, first)
    expected = f"expected to take {in_gib(sizes.peak_bytes(memory_plan))} on the device ({memory_plan.in_words()})"
    if budget is not None:
        expected += f", which has {in_gib(budget.total_bytes)}"
        reporter.log(expected)
    if memory_plan != first:
        data = {"step": 0 if header is None else header.step, "from": first.in_words(), "to": memory_plan.in_words()}
        reporter.notice(SMALLER_FOOTPRINT, data | {"message": expected})
    return MemoryLayout(memory_plan=memory_plan, sizes=sizes, budget_now=lambda: budget_of(base.device))


# ---- batch slots: how many jobs fit on a device in one batch
#
# The frozen base is there once. Each place takes an adapter and an optimizer, padded to the rank that all are padded
# to, and the activations of its rows; see giornata.workloads.train.device.memory_budget for the sizes.


def sizes_in_a_place(base: BaseModel, spec: TrainSpec) -> MemorySizes:
    """Return the sizes of the largest job that may share a batch with this one: of the same shapes, with all of the
    rank, the optimizer that remembers most, and an average of its weights."""
    largest = {
        "rank": rank_ceiling(spec.rank),
        "optimizer": max(OPTIMIZERS, key=lambda each: len(KINDS[each].tensors)),
        "use_ema": True,
    }
    return sizes_of(base, spec.model_copy(update=largest))


def places_within(sizes: MemorySizes, spec: TrainSpec, budget: MemoryBudget | None, *, most: int) -> int:
    """Return how many places fit, from 1 to `most`; `most` where memory is not bounded. The answer 1 does not mean
    that one place fits.

    Memory that other processes hold now counts as gone, if it is much: a batch is not made smaller once it has begun.
    """
    if budget is None:
        return most
    usable_bytes = budget.usable_bytes - (budget.others_bytes if budget.taken_by_others else 0)
    found = [count for count in range(1, most + 1) if needed_bytes(sizes, spec, count) <= usable_bytes]
    return max(found, default=1)


def needed_bytes(sizes: MemorySizes, spec: TrainSpec, count: int) -> int:
    """Return the most that so many jobs take: in a step of all of them, or while a newcomer's pictures are encoded.

    The batch is as wide as a power of two of jobs, but never wider than there are places.
    """
    rows = MemoryPlan(recompute=Recompute.of(spec.gradient_checkpointing), rows=spec.train_batch_size)
    working_bytes = max(count * sizes.activation_bytes(rows), sizes.preparing_bytes)
    return sizes.weights_bytes + count * sizes.trained_bytes + working_bytes
