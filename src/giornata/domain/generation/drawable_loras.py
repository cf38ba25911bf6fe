"""The LoRA files that pictures can be drawn with, told by the names and shapes of their tensors.

Each row of a batch has its own LoRAs, as factors of a low rank. The magnitudes of a DoRA depend on the whole weight
of a layer, and a LoHa has a high rank: rows cannot have those. The server and the nodes ask this module, so that the
server refuses what each node would.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from giornata.domain.errors import Fault

MOST_RANK = 512
"""A higher rank than any LoRA is trained with, and than a batch should compute with."""
LOKR = "lokr_"
OTHER_KINDS = {
    "dora_scale": "DoRA",
    "lora_magnitude_vector": "DoRA",
    LOKR: "LoKr",
    "hada_w": "LoHa",
    "lora_mid": "LoCon with a core (Tucker)",
    "oft_": "OFT",
}
"""The kinds of tensors that are no factor of a plain LoRA, by a part of the tensor's name."""
LOKR_CORE = "lokr_t2"
DOWN = ("lora_down.weight", "lora_A.weight", "lora.down.weight", "lora_linear_layer.down.weight")
SMALLER = "make it smaller: giornata lora resize FILE --rank 64"

Shapes = Mapping[str, tuple[int, ...]]


def kind_faults(names: Iterable[str], *, where: str) -> Iterator[Fault]:
    """Yield a fault for tensors of a kind that rows of a batch cannot have."""
    marks = {mark: kind for mark, kind in OTHER_KINDS.items() if mark != LOKR}
    marks[LOKR_CORE] = "LoKr with a core (Tucker)"
    kinds = {kind for name in names for mark, kind in marks.items() if mark in name}
    if kinds:
        message = f"holds {', '.join(sorted(kinds))}, which rows of a batch cannot have each for itself"
        yield Fault(where=where, message=message, hint="train it as a plain LoRA")


def rank_fault(layer: str, rank: int, *, where: str) -> Fault:
    """Return the fault of a layer whose update has a rank of more than MOST_RANK."""
    message = f"has an update of rank {rank} in {layer}, and {MOST_RANK} is the most"
    return Fault(where=where, message=message, hint=SMALLER)


def shape_faults(shapes: Shapes, *, where: str) -> Iterator[Fault]:
    """Yield the faults of a LoRA's header: kinds of tensors, and the highest rank that its layers can have."""
    yield from kind_faults(shapes, where=where)
    ranks = {**_plain_ranks(shapes), **_lokr_ranks(shapes)}
    highest = max(ranks, key=lambda layer: ranks[layer], default="")
    if ranks.get(highest, 0) > MOST_RANK:
        yield rank_fault(highest, ranks[highest], where=where)


def _plain_ranks(shapes: Shapes) -> dict[str, int]:
    return {
        name.removesuffix(ending).rstrip("."): shape[0]
        for name, shape in shapes.items()
        for ending in DOWN
        if name.endswith(ending) and shape
    }


def _lokr_ranks(shapes: Shapes) -> dict[str, int]:
    """Return the product of the ranks of both factors, which the product of Kronecker has at most."""
    factors: dict[str, dict[str, int]] = defaultdict(dict)
    for name, shape in shapes.items():
        layer, mark, rest = name.partition(f".{LOKR}")
        if mark and len(shape) >= 2:
            factor, _, part = rest.partition("_")
            rank = shape[0] if part == "b" else min(shape[0], math.prod(shape[1:]))
            factors[layer][factor] = min(rank, factors[layer].get(factor, rank))
    return {layer: each["w1"] * each["w2"] for layer, each in factors.items() if {"w1", "w2"} <= each.keys()}
