"""How many jobs a device has room for in one batch, told before the first of them begins.

The frozen base is there once. Each place takes an adapter and an optimizer, padded to the rank that all are padded
to, and the activations of its rows; see giornata.workloads.train.fit for the sizes.
"""

from giornata.diffusion.models import BaseModel
from giornata.diffusion.optimizer_kinds import KINDS
from giornata.diffusion.recompute import Recompute
from giornata.protocol.joint import OPTIMIZERS, rank_ceiling
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.fit import Room, Sizes, sizes_of
from giornata.workloads.train.footprint import Footprint


def sizes_in_a_place(base: BaseModel, spec: TrainSpec) -> Sizes:
    """The sizes of the largest job that may share a batch with this one: of the same shapes, with all of the rank,
    the optimizer that remembers most, and an average of its weights."""
    largest = {
        "rank": rank_ceiling(spec.rank),
        "optimizer": max(OPTIMIZERS, key=lambda each: len(KINDS[each].tensors)),
        "use_ema": True,
    }
    return sizes_of(base, spec.model_copy(update=largest))


def places_within(sizes: Sizes, spec: TrainSpec, room: Room | None, *, most: int) -> int:
    """From 1 to `most`; `most` where memory is not bounded. With 1, whether that one fits is not answered here.

    What other processes hold now counts as gone, if it is much: a batch is not made smaller once it has begun.
    """
    if room is None:
        return most
    usable_bytes = room.usable_bytes - (room.others_bytes if room.taken_by_others else 0)
    found = [count for count in range(1, most + 1) if needed_bytes(sizes, spec, count) <= usable_bytes]
    return max(found, default=1)


def needed_bytes(sizes: Sizes, spec: TrainSpec, count: int) -> int:
    """The most that so many jobs take: in a step of all of them, or while a newcomer's pictures are encoded.

    The batch is as wide as a power of two of jobs, but never wider than there are places.
    """
    rows = Footprint(recompute=Recompute.of(spec.gradient_checkpointing), rows=spec.train_batch_size)
    working_bytes = max(count * sizes.activation_bytes(rows), sizes.preparing_bytes)
    return sizes.weights_bytes + count * sizes.trained_bytes + working_bytes
