"""Randomness as a function: every draw is named by its purpose, and has no state that could be lost.

A draw is keyed by (seed, purpose, counters…), for instance (spec.seed, "noise", step, micro, index). The key is
the blake2b-128 of their canonical JSON and starts a Philox4x64-10 counter-based generator of its own (Salmon et
al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). A job that resumes at a step asks for the same key
and gets the same bits, whatever was or was not drawn before. Give every use a purpose of its own.

Integers, permutations and uniform numbers are made from the raw words of Philox alone. Normal numbers come
from numpy's ziggurat for float32 (tables and comparisons, scalar code), so they do not follow the width of the
processor's vector units as a Box-Muller with vectorized logarithms would. numpy's version is in the fingerprint
of a checkpoint.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.random.bit_generator import ISeedSequence
from torch.nn import functional

from giornata.protocol.specs import TrainSpec

_WORD_SPAN = 2**64


def key_of(kind: str, seed: int, purpose: str, counters: tuple[int | str, ...]) -> int:
    """Return the 128-bit Philox key of a draw. Canonical JSON keeps 1 and "1", and ("a", "b") and ("ab",), apart."""
    text = json.dumps([kind, seed, purpose, *counters], separators=(",", ":"))
    return int.from_bytes(hashlib.blake2b(text.encode("ascii"), digest_size=16).digest(), "little")


def _philox(kind: str, seed: int, purpose: str, counters: tuple[int | str, ...]) -> np.random.Philox:
    return np.random.Philox(_Key(key_of(kind, seed, purpose, counters)))


class _Key(ISeedSequence):
    """A seed sequence that hands Philox its key. The generator is that of `Philox(key=...)`, but that call asks the
    system for entropy first and takes three times as long."""

    def __init__(self, key: int) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> np.ndarray:
        """Return the key's words, the lowest first. Philox4x64 asks for two of 64 bits."""
        if n_words != 2 or dtype is not np.uint64:
            raise ValueError(f"a key has 2 words of 64 bits, and {n_words} of {dtype} are asked for")
        return np.array([self._key % _WORD_SPAN, self._key // _WORD_SPAN], dtype=np.uint64)


def normal(seed: int, purpose: str, *counters: int | str, shape: tuple[int, ...]) -> torch.Tensor:
    """Draw standard normal numbers; float32 on the CPU, of `shape`."""
    return normals(seed, purpose, [counters], shape=shape)[0]


def normals(
    seed: int, purpose: str, counters_N: Sequence[tuple[int | str, ...]], *, shape: tuple[int, ...]
) -> torch.Tensor:
    """Draw `normal` for each of N draws, in one tensor of (N, *shape)."""
    drawn: np.ndarray = np.empty((len(counters_N), *shape), dtype=np.float32)
    for place, counters in enumerate(counters_N):
        generator = np.random.Generator(_philox("normal", seed, purpose, counters))
        generator.standard_normal(out=drawn[place : place + 1], dtype=np.float32)
    return torch.from_numpy(drawn)


def uniform(seed: int, purpose: str, *counters: int | str, shape: tuple[int, ...]) -> torch.Tensor:
    """Draw uniform numbers in [0, 1), multiples of 2**-24; float32 on the CPU, of `shape`."""
    words = _words(_philox("uniform", seed, purpose, counters), int(np.prod(shape, dtype=np.int64)))
    values = (words >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return torch.from_numpy(values.reshape(shape))


def integer(seed: int, purpose: str, *counters: int | str, low: int, high: int) -> int:
    """Draw one integer in [low, high), each equally likely: words in the incomplete last span are drawn again."""
    span = high - low
    if not 1 <= span <= _WORD_SPAN:
        raise ValueError(f"no integer to draw in [{low}, {high})")
    bits = _philox("integer", seed, purpose, counters)
    limit = _WORD_SPAN - _WORD_SPAN % span
    while (word := int(bits.random_raw())) >= limit:
        pass
    return low + word % span


def permutation(seed: int, purpose: str, *counters: int | str, n: int) -> list[int]:
    """Return the numbers 0 … n-1 in a random order: sorted by one random 64-bit word each."""
    words = _words(_philox("permutation", seed, purpose, counters), n)
    return [int(place) for place in np.argsort(words, kind="stable")]


def _words(bits: np.random.Philox, count: int) -> np.ndarray:
    return np.asarray(bits.random_raw(count), dtype=np.uint64)


# ---- multi-resolution noise (pyramid noise in sd-scripts): coarse noise on top of fine
#
# Level i (from 0) is normal noise of 1 / r^i of the height and width, r uniform in [2, 4), enlarged bilinearly and
# multiplied by discount^i; the last level is the one with a side of one. The sum is divided by its standard
# deviation.
#
# Shapes: C, H, W of the latents. The sums are made in float64, so that the way in which a processor adds seldom
# shows.


@dataclass(frozen=True, slots=True, kw_only=True)
class Multires:
    """Multi-resolution noise: at most `iterations` levels, each `discount` times as strong as the one before."""

    iterations: int
    discount: float

    @classmethod
    def of(cls, spec: TrainSpec) -> Self | None:
        """Return the settings that the spec wants; None when it wants plain noise."""
        iterations = spec.multires_noise_iterations
        return None if iterations is None else cls(iterations=iterations, discount=spec.multires_noise_discount)

    def added(self, noise_CHW: torch.Tensor, seed: int, purpose: str, key: tuple[int, ...]) -> torch.Tensor:
        """Return noise_CHW with the levels of this draw, float32, of a standard deviation of 1."""
        channels, height, width = noise_CHW.shape
        total_CHW = noise_CHW.double()
        for level in range(self.iterations):
            ratio = 2.0 + 2.0 * float(uniform(seed, f"{purpose}/ratio", *key, level, shape=(1,)))
            low, narrow = max(1, int(height / ratio**level)), max(1, int(width / ratio**level))
            coarse = normal(seed, purpose, *key, level, shape=(1, channels, low, narrow)).double()
            enlarged = functional.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=False)
            total_CHW = total_CHW + enlarged[0] * self.discount**level
            if low == 1 or narrow == 1:
                break
        return (total_CHW / total_CHW.std()).float()
