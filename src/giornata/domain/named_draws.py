"""Randomness as a function, in pure Python: a draw is named by its seed, its purpose and its counters.

The names are those of `giornata.diffusion.draws.randomness`, which needs numpy: a key is the canonical JSON of kind,
seed, purpose and counters. The words of a draw are blake2b of the key and the number of a block, so a draw needs no
state, and draws of different names are independent. Give every use a purpose of its own.
"""

import hashlib
import json
from collections.abc import Iterator
from itertools import count

WORD_BITS = 64
WORD_BYTES = 8
WORDS_PER_BLOCK = 8
MANTISSA_BITS = 53


def drawn_integer(seed: int, purpose: str, *counters: int | str, below: int) -> int:
    """Return one integer in [0, below), each equally likely. Words in the incomplete last span are drawn again."""
    span = 1 << WORD_BITS
    if not 1 <= below <= span:
        raise ValueError(f"no integer to draw below {below}")
    limit = span - span % below
    return next(word for word in _words("integer", seed, purpose, counters) if word < limit) % below


def drawn_share(seed: int, purpose: str, *counters: int | str) -> float:
    """Return a number in [0, 1), a multiple of 2**-53."""
    word = next(_words("share", seed, purpose, counters))
    return float(word >> (WORD_BITS - MANTISSA_BITS)) / float(1 << MANTISSA_BITS)


def _words(kind: str, seed: int, purpose: str, counters: tuple[int | str, ...]) -> Iterator[int]:
    key = json.dumps([kind, seed, purpose, *counters], separators=(",", ":")).encode("ascii")
    for block in count():
        salt = block.to_bytes(WORD_BYTES, "little")
        drawn = hashlib.blake2b(key, digest_size=WORD_BYTES * WORDS_PER_BLOCK, salt=salt).digest()
        for start in range(0, len(drawn), WORD_BYTES):
            yield int.from_bytes(drawn[start : start + WORD_BYTES], "little")
