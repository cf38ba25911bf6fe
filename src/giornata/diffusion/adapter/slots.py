"""Fixed places on one frozen base, each of which holds one job's LoRA while that job learns.

Shapes: J places; M numbers of a place; F families of layers; R the rank that a layer's adapters are padded to. The
weights of a place are one row of values_JM (`giornata.diffusion.adapter.slot_layout` says what lies where). So a
layer's adapters of all jobs are one strided view, for one batched product, and what has to be done to a whole job (an
optimizer step, clipping, a copy) is done to one row.

Rows and their gradients are float32. A pass computes with a copy of them in the precision of the base, and the
gradient of the copy is cast back: one cast each way, for all layers together.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import torch
from torch import nn

from giornata.diffusion.adapter.adapter_plan import (
    AdaptedLayer,
    AdapterSize,
    adapted_layers,
    segments_of,
    size_of,
    usual_size,
)
from giornata.diffusion.adapter.batched_lora import (
    BatchedLoraLinear,
    FusedProjections,
    StackedLora,
    families,
    replace_layer,
)
from giornata.diffusion.adapter.dropping import Dropping
from giornata.diffusion.adapter.lora import Adapters, initialize
from giornata.diffusion.adapter.slot_layout import SlotLayout, SlotScaling, TensorPlace, layout_of
from giornata.diffusion.base.eight_bits import EightBitLinear
from giornata.diffusion.base.models import BaseModel
from giornata.domain.errors import Fault, WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.objective import has_dropout


class AdapterSlots:
    """A set of `count` places for adapters on the layers of `base` that `spec` adapts, or on `layers` of these.

    Each place has room for an adapter of `rank`, or without it for one as large as `spec` has it there; the job in a
    place has the targets and patterns of `spec`. The layers do nothing outside of `on()`: pictures and captions are
    encoded, and class pictures drawn, by the bare base meanwhile. As a context manager the set takes itself off the
    base at the end.
    """

    def __init__(
        self,
        base: BaseModel,
        spec: TrainSpec,
        *,
        count: int,
        rank: int | None = None,
        layers: tuple[AdaptedLayer, ...] | None = None,
    ) -> None:
        self.count, self.device, self.dtype = count, base.device, base.dtype
        chosen = adapted_layers(base, spec) if layers is None else layers
        sizes = {each.public: size_of(spec, each.public) for each in chosen}
        self.ranks = {name: size.rank if rank is None else rank for name, size in sizes.items()}
        related = _replaced(chosen, sizes)
        self._adapted = tuple(each for family in related for each in family)
        self.layout = layout_of([[each.what for each in family] for family in related], self.ranks)
        self.values_JM = torch.zeros((count, self.layout.width), dtype=torch.float32, device=base.device)
        self.gradients_JM = torch.zeros_like(self.values_JM)
        self._sizes = [piece.size for piece in self.layout.pieces]
        self._scaling = SlotScaling(self.layout, count=count, device=base.device)
        self.dropping = Dropping()
        # A job that trains alone and leaves nothing out has the plainest layers.
        self._drops = count > 1 or has_dropout(spec)
        self.width = 0

    def set_width(self, width: int) -> None:
        """Set how many places, from the first on, take part in the batch from now on."""
        if not 1 <= width <= self.count:
            raise ValueError(f"a batch of {width} places out of {self.count}")
        self.width = width

    def _stacks(self, row_JM: torch.Tensor, places: slice) -> Iterator[StackedLora]:
        """Yield a stack for each of the adapted layers, in their order, from the rows of these places."""
        scale_JF = None
        if self._scaling.is_needed(places):
            if self.dtype is torch.float32:
                scale_JF = self._scaling.values_JF[places]
            else:
                row_JM = row_JM * self._scaling.of_numbers(places)
        parts = iter(row_JM.to(self.dtype).split(self._sizes, dim=1))
        for number, family in enumerate(self.layout.families):
            a_JRI = _shaped(next(parts), family.a)
            scale_J11 = None if scale_JF is None else scale_JF[:, number, None, None]
            for b in family.b:
                yield StackedLora(a_JRI=a_JRI, b_JOR=_shaped(next(parts), b), scale_J11=scale_J11)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Within, one forward pass and its backward pass go through the adapters; batches are laid out by place.

        Weights that change meanwhile are of no effect before the next time.
        """
        places = slice(0, self.width)
        row_JM = self.values_JM[places].detach().requires_grad_()
        row_JM.grad = self.gradients_JM[places]
        for each, stack in zip(self._adapted, self._stacks(row_JM, places), strict=True):
            dropping = self.dropping.of_layer(each.what.public) if self._drops else None
            each.layer.attach(stack if dropping is None else replace(stack, dropping=dropping))
        try:
            yield
        finally:
            for each in self._adapted:
                each.layer.attach(None)

    @contextmanager
    def only(self, place: int) -> Iterator[None]:
        """Within, batches of any size go through the adapter in this place alone, and no gradients are kept."""
        before = [each.layer.stack for each in self._adapted]
        places = slice(place, place + 1)
        try:
            for each, stack in zip(self._adapted, self._stacks(self.values_JM[places], places), strict=True):
                each.layer.attach(stack)
            with torch.no_grad():
                yield
        finally:
            for each, former in zip(self._adapted, before, strict=True):
                each.layer.attach(former)

    def assign(self, place: int, spec: TrainSpec) -> "AdapterSlot":
        """Initialize an adapter in this place; see `giornata.diffusion.adapter.lora.add_adapters`."""
        if spec.seed is None:
            raise ValueError("a job's seed is set at submission")
        self.clear(place)
        slot = AdapterSlot(self, place, spec)
        initialize(slot.adapters.parameters, spec.seed)
        return slot

    def clear(self, place: int) -> None:
        """Empty this place, so that it computes exactly what the bare base computes."""
        with torch.no_grad():
            self.values_JM[place].zero_()
            self.gradients_JM[place].zero_()
        self._scaling.clear(place)

    def scale(self, place: int, of_families: Sequence[float]) -> None:
        """Set the scales that multiply the adapters in this place, family by family."""
        self._scaling.set(place, of_families)

    def remove(self) -> None:
        """Give the base back as it was. May be called again."""
        for each in self._adapted:
            each.undo()
        self._adapted = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


class AdapterSlot:
    """One job's adapter in its place. `adapters` looks into the place's row by the names and shapes of a job that
    trains alone; what writes to one writes to the other."""

    def __init__(self, slots: AdapterSlots, place: int, spec: TrainSpec) -> None:
        self._slots, self.place = slots, place
        layout, sizes = slots.layout, {layer: size_of(spec, layer) for layer in slots.ranks}
        self.ranks = {layer: size.rank for layer, size in sizes.items()}
        if too_large := [layer for layer, rank in self.ranks.items() if rank > slots.ranks[layer]]:
            layer = too_large[0]
            raise ValueError(f"rank {self.ranks[layer]} of {layer} does not fit into a place of {slots.ranks[layer]}")
        of_families = [sizes[family.a.layer] for family in layout.families]
        self._scales = [size.alpha / size.rank for size in of_families]
        self.segments = segments_of(spec, ((each.name, each.start, each.end) for each in layout.places))
        self.rows = {
            name: nn.Parameter(slots.values_JM[place, start:end], requires_grad=True)
            for name, (_, start, end) in self.segments.items()
        }
        views, usual = layout.views(slots.values_JM[place], self.ranks), usual_size(spec)
        parameters = {name: nn.Parameter(view) for name, view in views.items()}
        self.adapters = Adapters(
            parameters=parameters,
            rank=usual.rank,
            alpha=usual.alpha,
            models=(),
            swapped_in=self.alone,
            learning=slots.on,
            dropping=slots.dropping,
        )
        self.bind()

    @property
    def layout(self) -> SlotLayout:
        """Return the layout of the place's row."""
        return self._slots.layout

    def bind(self) -> None:
        """Point rows, weights and gradients at the place's own memory."""
        slots, place = self._slots, self.place
        slots.scale(place, self._scales)
        for name, (_, start, end) in self.segments.items():
            self.rows[name].data = slots.values_JM[place, start:end]
            self.rows[name].grad = slots.gradients_JM[place, start:end]
        values = slots.layout.views(slots.values_JM[place], self.ranks)
        gradients = slots.layout.views(slots.gradients_JM[place], self.ranks)
        for name, parameter in self.adapters.parameters.items():
            parameter.data, parameter.grad = values[name], gradients[name]

    def alone(self) -> AbstractContextManager[None]:
        """Within, the whole batch goes through this job's adapter, whatever lies in the other places; no
        gradients."""
        return self._slots.only(self.place)

    def move(self, place: int) -> None:
        """Take the weights and the gradients so far to another place, and leave this one empty."""
        slots, old = self._slots, self.place
        with torch.no_grad():
            slots.values_JM[place].copy_(slots.values_JM[old])
            slots.gradients_JM[place].copy_(slots.gradients_JM[old])
        slots.clear(old)
        self.place = place
        self.bind()

    def leave(self) -> None:
        """Empty the place. The adapter is of no use afterwards."""
        self._slots.clear(self.place)

    def cut(self, name: str, row: torch.Tensor) -> dict[str, torch.Tensor]:
        """Cut a tensor that has a number for each of those of `rows[name]` into the adapter's tensors, without
        padding."""
        _, start, end = self.segments[name]
        inside = [place for place in self.layout.places if start <= place.start < end]
        return {place.name: place.shifted(-start).view(row, self.ranks[place.layer]) for place in inside}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Adapted:
    """A layer that a BatchedLoraLinear has replaced."""

    what: AdaptedLayer
    layer: BatchedLoraLinear

    def undo(self) -> None:
        replace_layer(self.what.model, self.what.name, self.what.layer)


def _replaced(chosen: tuple[AdaptedLayer, ...], sizes: Mapping[str, AdapterSize]) -> tuple[tuple[_Adapted, ...], ...]:
    """Replace every chosen layer by a BatchedLoraLinear; all or none. Layers of a fused projection are
    replaced together, others by their public names."""
    other = sorted(each.name for each in chosen if type(each.layer) not in {nn.Linear, EightBitLinear})
    if other or not chosen:
        message = f"{other[0]} is not a plain linear layer" if other else "name no layer of the UNet"
        fault = Fault(where="spec.target_modules", message=message, hint="train this job alone")
        raise WorkloadFailed(Reason.BAD_SPEC, str(fault), (fault,))
    related = _related(chosen, sizes)
    adapted = {
        each.public: _Adapted(what=each, layer=BatchedLoraLinear(each.layer))
        for each in chosen
        if isinstance(each.layer, nn.Linear)
    }
    for each in adapted.values():
        replace_layer(each.what.model, each.what.name, each.layer)
    together = [tuple(adapted[name] for name in names) for names in related]
    for members in together:
        FusedProjections([each.layer for each in members])
    apart = adapted.keys() - {name for names in related for name in names}
    found = [*together, *((adapted[name],) for name in apart)]
    return tuple(sorted(found, key=lambda family: min(each.what.public for each in family)))


def _related(chosen: tuple[AdaptedLayer, ...], sizes: Mapping[str, AdapterSize]) -> list[list[str]]:
    """Return the public names of layers that are given one tensor and have adapters of one size."""
    alike: dict[tuple[int, int, AdapterSize], list[str]] = defaultdict(list)
    for model in {id(each.model): each.model for each in chosen}.values():
        public = {each.name: each.public for each in chosen if each.model is model}
        for number, names in enumerate(families(model)):
            for name in (public[each] for each in names if each in public):
                alike[id(model), number, sizes[name]].append(name)
    return [names for names in alike.values() if len(names) > 1]


def _shaped(part_JX: torch.Tensor, place: TensorPlace) -> torch.Tensor:
    return part_JX.view(-1, place.rows, place.columns)
