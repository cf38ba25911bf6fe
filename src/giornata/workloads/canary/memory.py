"""Bits that are written to the device's memory have to come back."""

from collections.abc import Callable

import torch

from giornata.domain.errors import WorkloadFailed
from giornata.domain.reasons import Reason

SHARE = 0.5  # of what is free: a model that is warm on the card stays there
CHUNK_BYTES = 2**28
ON_CPU_BYTES = 2**26
WORD_BYTES = 8
ODD = 0x2545F4914F6CDD1D  # neighbouring words differ in about half of their bits

Touch = Callable[[torch.Tensor], None]
"""What a test does to a piece of memory after it was written. On a sound device: nothing."""


def bytes_to_check(device: torch.device) -> int:
    """How much of the memory is looked at: half of what is free, in whole chunks."""
    if device.type != "cuda":
        return ON_CPU_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    return max(CHUNK_BYTES, int(free * SHARE) // CHUNK_BYTES * CHUNK_BYTES)


def check_memory(device: torch.device, size_bytes: int, *, attend: Callable[[], None], touch: Touch) -> int:
    """Write a pattern over all of it, read it back, and the same with every bit turned over.

    `attend` is called between chunks, and may raise. Returns how many bytes were checked. Raises WorkloadFailed
    (NODE_DRIVER) when bits come back wrong, and torch's OutOfMemoryError when the memory is not there.
    """
    try:
        return _written_and_read(device, size_bytes, attend, touch)
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _written_and_read(device: torch.device, size_bytes: int, attend: Callable[[], None], touch: Touch) -> int:
    chunk_bytes = min(CHUNK_BYTES, size_bytes)
    words = chunk_bytes // WORD_BYTES
    pieces = [torch.empty(words, dtype=torch.int64, device=device) for _ in range(size_bytes // chunk_bytes)]
    for inverted in (False, True):
        for number, piece in enumerate(pieces):
            attend()
            piece.copy_(_pattern(number, piece, inverted=inverted))
            touch(piece)
        for number, piece in enumerate(pieces):
            attend()
            _compare(number, piece, _pattern(number, piece, inverted=inverted))
    return len(pieces) * words * WORD_BYTES


def _pattern(number: int, piece: torch.Tensor, *, inverted: bool) -> torch.Tensor:
    """Each word tells its own place."""
    first = number * piece.numel()
    words = torch.arange(first, first + piece.numel(), dtype=torch.int64, device=piece.device) * ODD
    return ~words if inverted else words


def _compare(number: int, piece: torch.Tensor, written: torch.Tensor) -> None:
    if torch.equal(piece, written):
        return
    wrong = piece != written
    one = int(wrong.to(torch.uint8).argmax())
    bits = int(piece[one] ^ written[one]) & (2**64 - 1)
    message = (
        f"{int(wrong.sum())} words of the device's memory came back with other bits than were written; "
        f"one of them at byte {(number * piece.numel() + one) * WORD_BYTES}, bits {bits:#018x}"
    )
    raise WorkloadFailed(Reason.NODE_DRIVER, message)
