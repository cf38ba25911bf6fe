"""What the adapters in each place are multiplied by: alpha / rank, one number for each family of layers.

Shapes: J places, F families, M numbers of a place. In float32 the layers multiply what A gives out. In a narrower
precision the float32 row is multiplied before it is rounded: a scale is rounded nowhere by itself, and the layers
multiply nothing.
"""

from collections.abc import Sequence

import torch

from giornata.diffusion.slot_layout import Layout


class Scaling:
    """The scales of `count` places. A place that was never set, or was cleared, has no adapter to be multiplied."""

    def __init__(self, layout: Layout, *, count: int, device: torch.device) -> None:
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
        """Nobody sits here any more."""
        self.values_JF[place] = 0.0
        self._needed[place] = False

    def is_needed(self, places: slice) -> bool:
        """Whether a scale of these places is other than 1. Nothing has to be multiplied otherwise: the numbers of a
        place without an adapter are zero."""
        return any(self._needed[places])

    def of_numbers(self, places: slice) -> torch.Tensor:
        """A factor for each number of these places, (J, M): the scale for those of A, 1 for those of B."""
        scale_JF = self.values_JF[places]
        both_J2F = torch.stack([scale_JF, torch.ones_like(scale_JF)], dim=-1).flatten(1)
        return both_J2F.repeat_interleave(self._sizes_2F, dim=1, output_size=self._width)
