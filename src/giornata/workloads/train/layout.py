"""How an attempt is laid out in the device's memory: what the spec asked for, made smaller until it fits."""

from collections.abc import Callable
from dataclasses import dataclass

from giornata.diffusion.checkpoint import Header
from giornata.diffusion.memory import in_gib
from giornata.diffusion.models import BaseModel
from giornata.protocol.specs import TrainSpec
from giornata.workloads.interface import Reporter
from giornata.workloads.train.fit import Room, RoomOf, Sizes, fitted, sizes_of
from giornata.workloads.train.footprint import Footprint, from_fingerprint

SMALLER_FOOTPRINT = "smaller-footprint"
"""The notice that goes into the job's events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The footprint that the attempt begins with, the sizes behind it, and a look at the device as it is now."""

    footprint: Footprint
    sizes: Sizes
    room_now: Callable[[], Room | None]


def lay_out(base: BaseModel, spec: TrainSpec, room_of: RoomOf, reporter: Reporter, header: Header | None) -> Layout:
    """Choose the footprint: never larger than that of the checkpoint `header`, for the bits depend on it.

    Raises WorkloadFailed when the job does not fit; see `fitted`.
    """
    sizes, room = sizes_of(base, spec), room_of(base.device)
    first = Footprint.asked_for(spec) if header is None else from_fingerprint(header.fingerprint, spec)
    footprint = fitted(spec, sizes, room, first)
    expected = f"expected to take {in_gib(sizes.peak_bytes(footprint))} on the device ({footprint.in_words()})"
    if room is not None:
        expected += f", which has {in_gib(room.total_bytes)}"
        reporter.log(expected)
    if footprint != first:
        data = {"step": 0 if header is None else header.step, "from": first.in_words(), "to": footprint.in_words()}
        reporter.notice(SMALLER_FOOTPRINT, data | {"message": expected})
    return Layout(footprint=footprint, sizes=sizes, room_now=lambda: room_of(base.device))
