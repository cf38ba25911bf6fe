"""What lies where in a row of `giornata.diffusion.slots`: the text encoders' numbers, then those of the UNet.

Shapes: I inputs, O outputs of a layer; R the rank that its adapter is padded to. Of each layer A (R × I) and then B
(O × R); of siblings, which are given one tensor, the A of all and then their B.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from giornata.diffusion.adapted_layers import UNET, AdaptedLayer

UNET_GROUP, TEXT_GROUP = "unet", "text_encoders"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one tensor lies in a row, and what it is when padded. `layer` is the public name of what it adapts."""

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

    @property
    def pieces(self) -> tuple[Place, ...]:
        """Of each family its A and then its B; in this order they are the whole row."""
        return tuple(place for family in self.families for place in (family.a, *family.b))

    def views(self, row_M: torch.Tensor, ranks: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """All tensors of a row by the names of `Adapters`, in the order of the sorted names. `ranks` by layer."""
        found = {place.name: place.view(row_M, ranks[place.layer]) for place in self.places}
        return {name: found[name] for name in sorted(found)}


def layout_of(families: Sequence[Sequence[AdaptedLayer]], ranks: Mapping[str, int]) -> Layout:
    """The layout for these families, in this order; members of one have the same rank."""
    places: list[Place] = []
    found: list[Family] = []
    groups: dict[str, tuple[int, int]] = {}
    for members in families:
        begin = places[-1].end if places else 0
        for letter in "AB":
            for each in members:
                places.append(_place(each, letter, ranks[each.public], places[-1].end if places else 0))
        own = places[-2 * len(members) :]
        joined = replace(own[0], rows=own[0].rows * len(members))
        found.append(Family(a=joined, b=tuple(own[len(members) :])))
        group = UNET_GROUP if members[0].public.startswith(f"{UNET}.") else TEXT_GROUP
        groups[group] = (groups.get(group, (begin, begin))[0], places[-1].end)
    return Layout(places=tuple(places), families=tuple(found), groups=groups)


def _place(each: AdaptedLayer, letter: str, rank: int, start: int) -> Place:
    rows, columns = each.shapes(rank)[letter]
    name = f"{each.public}.lora_{letter}.weight"
    return Place(layer=each.public, name=name, start=start, rows=rows, columns=columns)
