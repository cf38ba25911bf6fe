"""sd-scripts' dropouts of an adapter: the parts left out of a forward pass, as a function of (seed, step, layer).

Between A and B of a layer lies a low-rank vector for each place of a picture. `network_dropout` sets numbers of these
to zero, `rank_dropout` the same ranks at all places of a picture, and both divide what is left by 1 - p;
`module_dropout` leaves out the layer for a micro-batch, and divides nothing.

The numbers are drawn on the device: the stream of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
number generators", OOPSLA 2014) whose seed is the picture's key and the layer's, each number by its place in the
stream. They are whole numbers modulo 2^64, equal on every device, and nothing waits for the device.

Shapes: B pictures of the batch; T places of a picture; R rank. A picture's row of tickets_B5 are its own key, that of
its micro-batch, and the three parts in units of 2^-24.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from giornata.diffusion.draws.randomness import key_of
from giornata.protocol.specs import TrainSpec

UNITS = 2**24
MOST_RANK = 512
GAMMA, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
RANKS, MODULE = 2**40, 2**41
"""Places in the stream: that of number r at place t is t · MOST_RANK + r, that of rank r is RANKS + r."""


def ticket(spec: TrainSpec, role: str, key: tuple[int, int, int]) -> list[int]:
    """Return a picture's row of tickets_B5. `key` is (step, micro, place)."""
    if spec.seed is None:
        raise ValueError("a job's seed is set at submission")
    own = _signed(key_of("integer", spec.seed, f"dropout/{role}", key))
    together = _signed(key_of("integer", spec.seed, "module-dropout", key[:2]))
    parts = (spec.network_dropout, spec.rank_dropout, spec.module_dropout)
    return [own, together, *(round(part * UNITS) for part in parts)]


class Dropping:
    """The dropout draws that all layers of a batch share. Outside of `during` nothing is left out."""

    def __init__(self) -> None:
        self.tickets_B5: torch.Tensor | None = None

    @contextmanager
    def during(self, tickets_B5: torch.Tensor | None) -> Iterator[None]:
        """Within, forward passes and their recomputations are of these pictures."""
        self.tickets_B5 = tickets_B5
        try:
            yield
        finally:
            self.tickets_B5 = None

    def of_layer(self, name: str) -> "LayerDropping":
        """Return the dropout of the layer with this public name."""
        return LayerDropping(self, name)


class LayerDropping:
    """The dropout of one layer's low-rank vectors."""

    def __init__(self, dropping: Dropping, name: str) -> None:
        self._dropping = dropping
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        self._key = _signed(int.from_bytes(digest, "little"))

    def __call__(self, low: torch.Tensor) -> torch.Tensor:
        """Apply the dropout to low (B, …, R), or with the pictures and their places in one dimension; the shape
        stays."""
        tickets_B5 = self._dropping.tickets_B5
        if tickets_B5 is None:
            return low
        low_BTR = low.reshape(tickets_B5.shape[0], -1, low.shape[-1])
        kept_BTR = self._kept(tickets_B5, low_BTR.shape[1], low_BTR.shape[2])
        return (low_BTR * kept_BTR.to(low.dtype)).view(low.shape)

    def of_channels(self, low_BRHW: torch.Tensor) -> torch.Tensor:
        """Apply the same dropout on a convolution, whose ranks are channels."""
        if self._dropping.tickets_B5 is None:
            return low_BRHW
        return self(low_BRHW.movedim(1, -1).contiguous()).movedim(-1, 1)

    def _kept(self, tickets_B5: torch.Tensor, places: int, rank: int) -> torch.Tensor:
        """Return kept_BTR: 0 for the numbers left out, and the factor of the rest."""
        own_B, together_B, *parts = tickets_B5.unbind(1)
        network_B, rank_B, module_B = parts
        device = tickets_B5.device
        ranks_R = torch.arange(rank, device=device)
        places_T1 = torch.arange(places, device=device).unsqueeze(1) * MOST_RANK
        own_B11 = self._seed(own_B).view(-1, 1, 1)
        numbers_BTR = drawn(own_B11, places_T1 + ranks_R) >= network_B.view(-1, 1, 1)
        of_ranks_B1R = drawn(own_B11, RANKS + ranks_R.unsqueeze(0)) >= rank_B.view(-1, 1, 1)
        module_B11 = (drawn(self._seed(together_B), MODULE) >= module_B).view(-1, 1, 1)
        left_B = (1.0 - network_B / UNITS) * (1.0 - rank_B / UNITS)
        return (numbers_BTR & of_ranks_B1R & module_B11) / left_B.view(-1, 1, 1)

    def _seed(self, keys_B: torch.Tensor) -> torch.Tensor:
        return mixed(keys_B + self._key)


def drawn(seeds: torch.Tensor, places: torch.Tensor | int) -> torch.Tensor:
    """Draw whole numbers below UNITS, int64: those at these places (from 0) in the streams of these seeds."""
    steps = _signed((places + 1) * GAMMA) if isinstance(places, int) else (places + 1) * _signed(GAMMA)
    return mixed(seeds + steps) >> 40 & (UNITS - 1)


def mixed(z: torch.Tensor) -> torch.Tensor:
    """Apply SplitMix64's last step, on int64 as if it had no sign."""
    z = (z ^ _shifted(z, 30)) * _signed(FIRST)
    z = (z ^ _shifted(z, 27)) * _signed(SECOND)
    return z ^ _shifted(z, 31)


def _shifted(z: torch.Tensor, by: int) -> torch.Tensor:
    """Shift to the right, with zeros from the left."""
    return z >> by & ((1 << (64 - by)) - 1)


def _signed(word: int) -> int:
    """Return the last 64 bits as int64 has them."""
    word %= 2**64
    return word - 2**64 if word >= 2**63 else word


def for_places(tickets: Sequence[torch.Tensor | None], rows: int, device: torch.device) -> torch.Tensor | None:
    """Return tickets_B5 of a batch of several jobs, `rows` pictures each; None when no job leaves anything out."""
    if all(each is None for each in tickets):
        return None
    nothing = torch.zeros((rows, 5), dtype=torch.int64, device=device)
    return torch.cat([nothing if each is None else each for each in tickets])
