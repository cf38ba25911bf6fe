"""Fixed places on one frozen base, in each of which a job's LoRA may sit, learn and leave.

Shapes: J places; M numbers of a place; R the rank that all are padded to; I inputs, O outputs of a layer. The weights
of a place are one row of values_JM: those of the text encoders, then those of the UNet, of each layer A (R × I) and
then B (O × R); of siblings, which are given one tensor, the A of all and then their B. So a layer's adapters of all
jobs are one strided view, for one batched product, and what has to be done to a whole job (an optimizer step,
clipping, a copy) is done to one row.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import torch
from torch import nn

from giornata.diffusion.adapter_plan import usual_size
from giornata.diffusion.eight_bits import EightBitLinear
from giornata.diffusion.lora import TEXT_TARGETS, UNET, Adapters, initialise, public_name
from giornata.diffusion.models import BaseModel
from giornata.diffusion.slot_layer import SlotLinear, Stack
from giornata.diffusion.slot_siblings import Siblings, families
from giornata.domain.errors import Fault
from giornata.domain.reasons import Reason
from giornata.engine.workload import WorkloadFailed
from giornata.protocol.specs import TrainSpec

# A layer's stack is strided so that a job's row is not: torch thinks that the other way might be faster.
warnings.filterwarnings("ignore", message="grad and param do not obey the gradient layout contract")

UNET_GROUP, TEXT_GROUP = "unet", "text_encoders"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one tensor lies in a row, and what it is when padded."""

    name: str
    start: int
    rows: int
    columns: int

    @property
    def end(self) -> int:
        return self.start + self.rows * self.columns

    @property
    def is_a(self) -> bool:
        return ".lora_A." in self.name

    def shifted(self, by: int) -> "Place":
        """The same in a piece of the row."""
        return replace(self, start=self.start + by)

    def view(self, row_M: torch.Tensor, rank: int) -> torch.Tensor:
        """The tensor without its padding, in the row's own memory."""
        padded = row_M[self.start : self.end].view(self.rows, self.columns)
        return padded[:rank] if self.is_a else padded[:, :rank]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Layers that are given one tensor: the A of all as one tensor, and the B of each. Most have one member."""

    a: Place
    b: tuple[Place, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What lies where in a row. `groups` are those that learn at a rate of their own, by their ends in the row."""

    places: tuple[Place, ...]
    families: tuple[Family, ...]
    groups: dict[str, tuple[int, int]]

    @property
    def width(self) -> int:
        """M."""
        return self.places[-1].end

    def views(self, row_M: torch.Tensor, rank: int) -> dict[str, torch.Tensor]:
        """All tensors of a row by the names of `Adapters`, in the order of the sorted names."""
        found = {place.name: place.view(row_M, rank) for place in self.places}
        return {name: found[name] for name in sorted(found)}


class Slots:
    """`count` places with adapters of up to `rank` on layers of `base`.

    Its layers do nothing outside of `on()`: pictures and captions are encoded, and class pictures drawn, by the bare
    base meanwhile. As a context manager it takes itself off the base at the end.
    """

    def __init__(
        self, base: BaseModel, *, count: int, rank: int, targets: tuple[str, ...], text_encoders: bool
    ) -> None:
        self.count, self.rank, self.device = count, rank, base.device
        related = _replaced(base, targets, text_encoders=text_encoders)
        self._adapted = tuple(each for family in related for each in family)
        self.layout = _layout(related, rank)
        self.values_JM = torch.zeros((count, self.layout.width), dtype=torch.float32, device=base.device)
        self.gradients_JM = torch.zeros_like(self.values_JM)
        self.scales_J = torch.zeros(count, dtype=torch.float32, device=base.device)
        self.width = 0
        self._stacks: list[Stack] = []

    def set_width(self, width: int) -> None:
        """How many places, from the first on, take part in the batch from now on."""
        if width == self.width:
            return
        if not 1 <= width <= self.count:
            raise ValueError(f"a batch of {width} places out of {self.count}")
        self.width = width
        scale_J11 = self.scales_J[:width].view(-1, 1, 1)
        self._stacks = self._stacked(lambda place: self._leaf(place, width), scale_J11)

    def _stacked(self, tensor: Callable[[Place], torch.Tensor], scale_J11: torch.Tensor) -> list[Stack]:
        """One for each of the adapted layers, in their order."""
        return [
            Stack(a_JRI=a_JRI, b_JOR=tensor(b), scale_J11=scale_J11)
            for family in self.layout.families
            for a_JRI in [tensor(family.a)]
            for b in family.b
        ]

    def _leaf(self, place: Place, width: int) -> torch.Tensor:
        shape = (width, place.rows, place.columns)
        leaf = self.values_JM[:width, place.start : place.end].view(shape).detach().requires_grad_()
        leaf.grad = self.gradients_JM[:width, place.start : place.end].view(shape)
        return leaf

    @contextmanager
    def on(self) -> Iterator[None]:
        """Within, forward and backward passes go through the adapters; batches are laid out by place."""
        for each, stack in zip(self._adapted, self._stacks, strict=True):
            each.layer.wear(stack)
        try:
            yield
        finally:
            for each in self._adapted:
                each.layer.wear(None)

    @contextmanager
    def only(self, place: int) -> Iterator[None]:
        """Within, batches of any size go through the adapter in this place alone, and no gradients are kept."""
        before = [each.layer.stack for each in self._adapted]
        stacks = self._stacked(lambda part: self._part(part, place), self.scales_J[place].view(1, 1, 1))
        try:
            for each, stack in zip(self._adapted, stacks, strict=True):
                each.layer.wear(stack)
            with torch.no_grad():
                yield
        finally:
            for each, former in zip(self._adapted, before, strict=True):
                each.layer.wear(former)

    def _part(self, part: Place, place: int) -> torch.Tensor:
        return self.values_JM[place, part.start : part.end].view(1, part.rows, part.columns)

    def sit(self, place: int, spec: TrainSpec) -> "Slot":
        """A freshly initialised adapter in this place; see `giornata.diffusion.lora.add_adapters`."""
        if spec.rank > self.rank:
            raise ValueError(f"rank {spec.rank} does not fit into places of rank {self.rank}")
        if spec.seed is None:
            raise ValueError("a job's seed is set at submission")
        self.clear(place)
        slot = Slot(self, place, spec)
        initialise(slot.adapters.parameters, spec.seed)
        return slot

    def clear(self, place: int) -> None:
        """Nobody sits here any more; the place computes what the bare base does."""
        with torch.no_grad():
            self.values_JM[place].zero_()
            self.gradients_JM[place].zero_()
            self.scales_J[place] = 0.0

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


class Slot:
    """One job's adapter in its place. `adapters` looks into the place's row by the names and shapes of a job that
    trains alone; what writes to one writes to the other."""

    def __init__(self, slots: Slots, place: int, spec: TrainSpec) -> None:
        self._slots, self.place, self._spec = slots, place, spec
        alpha = usual_size(spec).alpha
        self._scale = alpha / spec.rank
        layout = slots.layout
        self.rows = {
            name: nn.Parameter(slots.values_JM[place, start:end], requires_grad=True)
            for name, (start, end) in layout.groups.items()
        }
        views = layout.views(slots.values_JM[place], spec.rank)
        parameters = {name: nn.Parameter(view) for name, view in views.items()}
        self.adapters = Adapters(parameters=parameters, rank=spec.rank, alpha=alpha, models=(), worn=self.alone)
        self.bind()

    @property
    def layout(self) -> Layout:
        """What lies where."""
        return self._slots.layout

    def bind(self) -> None:
        """Point everything at the place's row and its gradients."""
        slots, place = self._slots, self.place
        slots.scales_J[place] = self._scale
        for name, (start, end) in slots.layout.groups.items():
            self.rows[name].data = slots.values_JM[place, start:end]
            self.rows[name].grad = slots.gradients_JM[place, start:end]
        for name, view in slots.layout.views(slots.values_JM[place], self._spec.rank).items():
            self.adapters.parameters[name].data = view

    def alone(self) -> AbstractContextManager[None]:
        """Within, the whole batch goes through this job's adapter, whoever has the other places; no gradients."""
        return self._slots.only(self.place)

    def move(self, place: int) -> None:
        """Take the weights and what there is of the gradient to another place, and leave this one empty."""
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

    def forget(self, group: str) -> None:
        """Drop the gradients of a group that does not learn any more."""
        grad = self.rows[group].grad
        if grad is not None:
            grad.zero_()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Adapted:
    """A layer whose place a SlotLinear has taken. `public` is its name as in the keys of `Adapters`."""

    model: nn.Module
    name: str
    public: str
    original: nn.Linear
    layer: SlotLinear

    def undo(self) -> None:
        _put(self.model, self.name, self.original)


def _replaced(base: BaseModel, targets: tuple[str, ...], *, text_encoders: bool) -> tuple[tuple[_Adapted, ...], ...]:
    """Put a SlotLinear into the place of every target; all or none. Siblings together, otherwise by public names."""
    models: list[tuple[str, nn.Module, tuple[str, ...]]] = [(UNET, base.unet, targets)]
    if text_encoders:
        named = zip(base.family.encoder_names, base.text_encoders, strict=True)
        models += [(name, each, TEXT_TARGETS) for name, each in named]
    found = [(prefix, model, *each) for prefix, model, suffixes in models for each in _targets(model, suffixes)]
    other = sorted(name for _, _, name, layer in found if type(layer) not in {nn.Linear, EightBitLinear})
    if other or not found:
        message = f"{other[0]} is not a plain linear layer" if other else "name no layer of the UNet"
        fault = Fault(where="spec.target_modules", message=message, hint="train this job alone")
        raise WorkloadFailed(Reason.BAD_SPEC, str(fault), (fault,))
    adapted = {
        public_name(prefix, name): _Adapted(
            model=model,
            name=name,
            public=public_name(prefix, name),
            original=layer,
            layer=SlotLinear(layer),
        )
        for prefix, model, name, layer in found
    }
    related = [
        [public_name(prefix, name) for name in names] for prefix, model, _ in models for names in families(model)
    ]
    for each in adapted.values():
        _put(each.model, each.name, each.layer)
    return _families(adapted, related)


def _families(adapted: dict[str, _Adapted], related: list[list[str]]) -> tuple[tuple[_Adapted, ...], ...]:
    """Those of the related that are adapted work together; every other layer is a family of its own."""
    left = dict(adapted)
    found = []
    for names in related:
        members = tuple(left.pop(name) for name in names if name in left)
        if len(members) > 1:
            Siblings([each.layer for each in members])
        found += [members] if members else []
    found += [(each,) for each in left.values()]
    return tuple(sorted(found, key=lambda family: min(each.public for each in family)))


def _targets(model: nn.Module, suffixes: tuple[str, ...]) -> list[tuple[str, nn.Module]]:
    named = list(model.named_modules())
    return [(name, layer) for name, layer in named if any(name == s or name.endswith(f".{s}") for s in suffixes)]


def _put(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, layer)


def _layout(adapted: tuple[tuple[_Adapted, ...], ...], rank: int) -> Layout:
    places: list[Place] = []
    families: list[Family] = []
    groups: dict[str, tuple[int, int]] = {}
    for members in adapted:
        begin = places[-1].end if places else 0
        for letter in "AB":
            for each in members:
                original = each.original
                rows, columns = (rank, original.in_features) if letter == "A" else (original.out_features, rank)
                start = places[-1].end if places else 0
                name = f"{each.public}.lora_{letter}.weight"
                places.append(Place(name=name, start=start, rows=rows, columns=columns))
        own = places[-2 * len(members) :]
        joined = replace(own[0], rows=rank * len(members))
        families.append(Family(a=joined, b=tuple(own[len(members) :])))
        group = UNET_GROUP if members[0].public.startswith(f"{UNET}.") else TEXT_GROUP
        groups[group] = (groups.get(group, (begin, begin))[0], places[-1].end)
    return Layout(places=tuple(places), families=tuple(families), groups=groups)
