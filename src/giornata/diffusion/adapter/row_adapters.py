"""Different LoRAs in one batch: each row of a forward pass of the UNet has LoRAs of its own.

Shapes: P places, one for each row of the batch; R the rank that a layer's adapters are padded to; I and O the layer's
inputs and outputs.

The layers of the UNet are wrapped once. A layer that a LoRA adapts has a place for each row: A, P × R × I (and the
kernel of a convolution), and B, P × O × R. To change the LoRAs of a row is to write its place, and a place that is
unchanged is not written. Several LoRAs of one row lie one after another along the rank.

So between two batches of one size no module, shape or stride changes, and compiled kernels stay. The exceptions are
the first LoRA on a kind of layer, and a rank that grows: ranks are powers of two.
"""

import re
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import torch
from torch import nn

from giornata.diffusion.adapter.batched_conv import BatchedLoraConv2d
from giornata.diffusion.adapter.batched_lora import BatchedLoraLinear, replace_layer
from giornata.diffusion.adapter.row_places import LayerPlaces
from giornata.diffusion.base.eight_bits import EightBitLinear
from giornata.diffusion.base.low_rank import LowRank
from giornata.diffusion.base.models import BaseModel

Chosen = tuple[tuple[str, float], ...]
"""The LoRAs of one row, by their keys, and the weight of each."""
REPEATED = re.compile(r"(?:transformer_blocks|resnets)\.\d+\.")
"""The parts of a UNet that are compiled: layers with one name in all of them are one kind of layer."""


class RowAdapters:
    """LoRAs on the UNet of `base`, up to `capacity` of them in the memory of the device.

    `load` may drop the LoRAs that were used least recently, but none that the latest `rows` named: those may be more
    than `capacity`. A layer has room for `rank` at first. With `steady`, a LoRA on one layer gives places to all
    layers of that kind, and they compute with them in every batch that has a LoRA: so compiled kernels see one graph,
    until `layout` changes. Without it a layer is left out while no row needs it. As a context manager the set takes
    itself off the base at the end.
    """

    def __init__(self, base: BaseModel, *, capacity: int = 16, rank: int = 8, steady: bool = False) -> None:
        self._unet, self._device, self._dtype = base.unet, base.device, base.dtype
        self.capacity, self._rank, self._steady = capacity, rank, steady
        self._originals = {name: layer for name, layer in base.unet.named_modules() if _can_be_wrapped(layer)}
        self._wrapped = {name: _wrapped(layer) for name, layer in self._originals.items()}
        for name, layer in self._wrapped.items():
            replace_layer(base.unet, name, layer)
        self._loaded: OrderedDict[str, Mapping[str, LowRank]] = OrderedDict()
        self._places: dict[str, LayerPlaces] = {}
        self._held: list[Chosen | None] = []
        self._attached: tuple[Sequence[Chosen], list[str]] | None = None  # the latest rows, and their layers
        self._latest: frozenset[str] = frozenset()
        self._alike: dict[str, list[str]] = {}
        for name in self._wrapped:
            self._alike.setdefault(_kind_of_layer(name), []).append(name)
        self._layouts = 0

    @property
    def layout(self) -> int:
        """Return the number of the present layout: that of the layers which have places, and of their ranks."""
        return self._layouts

    def __contains__(self, key: str) -> bool:
        return key in self._loaded

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the loaded LoRAs, the least recently used first."""
        return tuple(self._loaded)

    def use(self, key: str) -> bool:
        """Return True when the LoRA is loaded, and count it as used just now. A batch that needs several LoRAs asks
        for each, and loads those that are missing: then up to `capacity` of them do not drop each other."""
        if key in self._loaded:
            self._loaded.move_to_end(key)
        return key in self._loaded

    def load(self, key: str, layers: Mapping[str, LowRank], *, keep: Collection[str] = ()) -> None:
        """Take a LoRA into memory: its factors by the layers' names in the UNet, as
        `giornata.diffusion.files.row_lora` reads them. A LoRA that has this key already is replaced. Those in `keep`
        are not dropped for it."""
        if strange := sorted(layers.keys() - self._wrapped.keys()):
            raise ValueError(f"the UNet has no layer {strange[0]} that could be adapted")
        self.unload(key)
        self._loaded[key] = {name: each.to(self._device, self._dtype) for name, each in layers.items()}
        for other in [each for each in self._loaded if each != key and each not in self._latest and each not in keep]:
            if len(self._loaded) <= self.capacity:
                break
            self.unload(other)

    def unload(self, key: str) -> None:
        """Forget a LoRA, if it is there."""
        if self._loaded.pop(key, None) is not None:
            self._attached = None
            self._held = [None if held and key in dict(held) else held for held in self._held]

    @contextmanager
    def rows(self, chosen: Sequence[Mapping[str, float]], *, repeats: int = 1) -> Iterator[None]:
        """Within, a forward pass of the UNet has these LoRAs with these weights, row by row. The batch has the rows
        `repeats` times, one whole after the other: 2 for the halves of classifier-free guidance.

        A pass in which no row has a LoRA is one of the bare base. Raises ValueError for a key that is not loaded.
        """
        wanted = [self._known(row) for row in chosen] * repeats
        keys = list(dict.fromkeys(key for row in wanted for key, _ in row))
        for key in keys:
            self._loaded.move_to_end(key)
        self._latest = frozenset(keys)
        attached = self._written(wanted) if keys else []
        try:
            for name in attached:
                self._wrapped[name].attach(self._places[name].stack(len(wanted)))
            with torch.no_grad():
                yield
        finally:
            for name in attached:
                self._wrapped[name].attach(None)

    def remove(self) -> None:
        """Give the base back as it was. May be called again."""
        for name, layer in self._originals.items():
            replace_layer(self._unet, name, layer)
        self._originals.clear()
        self._loaded.clear()
        self._places.clear()
        self._attached = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def _known(self, row: Mapping[str, float]) -> Chosen:
        if missing := sorted(row.keys() - self._loaded.keys()):
            raise ValueError(f"the LoRA {missing[0]} is not loaded")
        return tuple((key, weight) for key, weight in sorted(row.items()) if weight != 0)

    def _written(self, wanted: Sequence[Chosen]) -> list[str]:
        """Write the places of all rows whose LoRAs are others than before. Return the layers that have to answer with
        their places."""
        if self._attached is not None and self._attached[0] == wanted:
            return self._attached[1]
        self._attached = None
        needed = self._ranks(wanted)
        if self._steady:
            needed = self._of_all_alike(needed)
        self._make_room(needed, len(wanted))
        for place, row in enumerate(wanted):
            if self._held[place] != row:
                self._held[place] = None  # what a failure leaves half written is written again
                self._write(place, row)
                self._held[place] = row
        attached = list(self._places) if self._steady else list(needed)
        self._attached = wanted, attached
        return attached

    def _ranks(self, wanted: Sequence[Chosen]) -> dict[str, int]:
        """Return the rank that each layer needs: the largest sum of the ranks of one row."""
        needed: dict[str, int] = {}
        for row in set(wanted):
            of_row: dict[str, int] = {}
            for key, _ in row:
                for name, factors in self._loaded[key].items():
                    of_row[name] = of_row.get(name, 0) + factors.rank
            for name, rank in of_row.items():
                needed[name] = max(needed.get(name, 0), rank)
        return needed

    def _of_all_alike(self, needed: Mapping[str, int]) -> dict[str, int]:
        """Give each layer the largest rank that one of its kind needs."""
        ranks: dict[str, int] = {}
        for name, rank in needed.items():
            kind = _kind_of_layer(name)
            ranks[kind] = max(ranks.get(kind, 0), rank)
        return {name: rank for kind, rank in ranks.items() for name in self._alike[kind]}

    def _make_room(self, needed: Mapping[str, int], rows: int) -> None:
        before = {name: places.rank for name, places in self._places.items()}
        count = max(len(self._held), _power_of_two(rows))
        if count > len(self._held):  # all places are made anew, with the room that they had
            needed = {name: max(before.get(name, 0), needed.get(name, 0)) for name in (*before, *needed)}
            self._places.clear()
        small = [name for name, rank in needed.items() if name not in self._places or self._places[name].rank < rank]
        for name in small:
            rank, layer = _power_of_two(max(needed[name], self._rank)), self._originals[name]
            self._places[name] = LayerPlaces(layer, count=count, rank=rank, device=self._device, dtype=self._dtype)
        if small:
            self._held = [None] * count
        if before != {name: places.rank for name, places in self._places.items()}:
            self._layouts += 1

    def _write(self, place: int, row: Chosen) -> None:
        loras = [(self._loaded[key], weight) for key, weight in row]
        rows = [(places.a_PRI[place], places.b_POR[place]) for places in self._places.values()]
        torch._foreach_zero_([tensor for pair in rows for tensor in pair])
        targets: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        filled = dict.fromkeys(self._places, 0)
        for layers, weight in loras:
            for name, factors in layers.items():
                start, end = filled[name], filled[name] + factors.rank
                places, filled[name] = self._places[name], end
                targets += [places.a_PRI[place, start:end], places.b_POR[place, :, start:end]]
                values += [places.down(factors), factors.up_OR * (factors.scale * weight)]
        if targets:
            torch._foreach_copy_(targets, values)


def _kind_of_layer(name: str) -> str:
    """Return the layer's name within the part of the UNet that is repeated; of any other layer its whole name."""
    return REPEATED.split(name)[-1]


def _can_be_wrapped(layer: nn.Module) -> bool:
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return type(layer) in {nn.Linear, EightBitLinear}


def _wrapped(layer: nn.Module) -> BatchedLoraLinear | BatchedLoraConv2d:
    return BatchedLoraConv2d(layer) if isinstance(layer, nn.Conv2d) else BatchedLoraLinear(layer)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
