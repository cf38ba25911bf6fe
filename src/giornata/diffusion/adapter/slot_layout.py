"""The layout of a row of `giornata.diffusion.adapter.slots`: the text encoders' numbers, then the UNet's.

Shapes: I inputs, O outputs of a layer; R the rank that its adapter is padded to. Of each layer A (R × I) and then B
(O × R); of layers of a fused projection, which share one tensor, the A of all and then their B.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from giornata.diffusion.adapter.adapter_plan import UNET, AdaptedLayer

UNET_GROUP, TEXT_GROUP = "unet", "text_encoders"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """The place of one tensor in a row, and its shape when padded. `layer` is the public name of what it adapts."""

    layer: str
    name: str
    start: int
    rows: int
    columns: int

    @property
    def size(self) -> int:
        return self.rows * self.columns

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def is_a(self) -> bool:
        return ".lora_A." in self.name

    def shifted(self, by: int) -> "TensorPlace":
        """Return the same place within a piece of the row."""
        return replace(self, start=self.start + by)

    def view(self, row_M: torch.Tensor, rank: int) -> torch.Tensor:
        """Return the tensor without its padding, in the row's own memory."""
        padded = row_M[self.start : self.end].view(self.rows, self.columns)
        return padded[:rank] if self.is_a else padded[:, :rank]


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedGroup:
    """Layers that are given one tensor: the A of all as one tensor, and the B of each. Most have one member."""

    a: TensorPlace
    b: tuple[TensorPlace, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLayout:
    """The places of all tensors in a row. `groups` are the tensors with a learning rate of their own, by their ends
    in the row."""

    places: tuple[TensorPlace, ...]
    families: tuple[FusedGroup, ...]
    groups: dict[str, tuple[int, int]]

    @property
    def width(self) -> int:
        """Return M, the numbers in one row."""
        return self.places[-1].end

    @property
    def pieces(self) -> tuple[TensorPlace, ...]:
        """Return each family's A and then its B; in this order they are the whole row."""
        return tuple(place for family in self.families for place in (family.a, *family.b))

    def views(self, row_M: torch.Tensor, ranks: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """Return all tensors of a row by the names of `Adapters`, in the order of the sorted names. `ranks` by
        layer."""
        found = {place.name: place.view(row_M, ranks[place.layer]) for place in self.places}
        return {name: found[name] for name in sorted(found)}


def layout_of(families: Sequence[Sequence[AdaptedLayer]], ranks: Mapping[str, int]) -> SlotLayout:
    """Return the layout for these families, in this order; members of one have the same rank."""
    places: list[TensorPlace] = []
    found: list[FusedGroup] = []
    groups: dict[str, tuple[int, int]] = {}
    for members in families:
        begin = places[-1].end if places else 0
        for letter in "AB":
            for each in members:
                places.append(_place(each, letter, ranks[each.public], places[-1].end if places else 0))
        own = places[-2 * len(members) :]
        joined = replace(own[0], rows=own[0].rows * len(members))
        found.append(FusedGroup(a=joined, b=tuple(own[len(members) :])))
        group = UNET_GROUP if members[0].public.startswith(f"{UNET}.") else TEXT_GROUP
        groups[group] = (groups.get(group, (begin, begin))[0], places[-1].end)
    return SlotLayout(places=tuple(places), families=tuple(found), groups=groups)


def _place(each: AdaptedLayer, letter: str, rank: int, start: int) -> TensorPlace:
    rows, columns = each.shapes(rank)[letter]
    name = f"{each.public}.lora_{letter}.weight"
    return TensorPlace(layer=each.public, name=name, start=start, rows=rows, columns=columns)


# ---- the scales: alpha / rank, one number for each place and family of layers
#
# Shapes: J places, F families, M numbers of a place. In float32 the layers multiply what A gives out. In a narrower
# precision the float32 row is multiplied before it is rounded: a scale is rounded nowhere by itself, and the layers
# multiply nothing.


class SlotScaling:
    """The scales of `count` places. A place that was never set, or was cleared, has no adapter to be multiplied."""

    def __init__(self, layout: SlotLayout, *, count: int, device: torch.device) -> None:
        self.values_JF = torch.zeros((count, len(layout.families)), dtype=torch.float32, device=device)
        sizes = [size for each in layout.families for size in (each.a.size, sum(b.size for b in each.b))]
        self._sizes_2F = torch.tensor(sizes, dtype=torch.int64, device=device)
        self._width = layout.width
        self._needed = [False] * count

    def set(self, place: int, of_families: Sequence[float]) -> None:
        """Take over the scales of the adapter in this place."""
        for number, scale in enumerate(of_families):  # one by one: to copy a tensor would wait for the device
            self.values_JF[place, number] = scale
        self._needed[place] = any(scale != 1.0 for scale in of_families)

    def clear(self, place: int) -> None:
        """Zero the scales of this place, which has no adapter any more."""
        self.values_JF[place] = 0.0
        self._needed[place] = False

    def is_needed(self, places: slice) -> bool:
        """Return True when a scale of these places is other than 1. Nothing has to be multiplied otherwise: the
        numbers of a place without an adapter are zero."""
        return any(self._needed[places])

    def of_numbers(self, places: slice) -> torch.Tensor:
        """Return a factor for each number of these places, (J, M): the scale for those of A, 1 for those of B."""
        scale_JF = self.values_JF[places]
        both_J2F = torch.stack([scale_JF, torch.ones_like(scale_JF)], dim=-1).flatten(1)
        return both_J2F.repeat_interleave(self._sizes_2F, dim=1, output_size=self._width)
