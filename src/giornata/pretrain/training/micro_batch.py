"""How many pictures one forward and backward pass takes: what the phase says, or as many as fit, found by trial."""

from collections.abc import Callable

import torch

from giornata.pretrain.training.peers import Channel

CPU_ROWS = 64
"""On a CPU, where nothing runs out early and larger passes are not faster."""
HEADROOM = 8
"""A size is taken when an eighth more fits too: batches of other shapes and the allocator's gaps need room."""

Try = Callable[[int], None]
"""Runs a forward and backward pass of so many rows, with everything else that a step holds in memory. Raises
torch.OutOfMemoryError."""


def share_of(global_batch_size: int, world: int) -> int:
    """The most rows that one trainer has in a step."""
    return -(-global_batch_size // world)


def micro_batch(most: int, device: torch.device, attempt: Try, channel: Channel) -> int:
    """At most `most`, the same for all trainers. Halves from there until it fits.

    Raises torch.OutOfMemoryError when not even one row does.
    """
    if device.type != "cuda":
        return min(most, CPU_ROWS)
    return agreed(fitting(most, attempt), channel)


def fitting(most: int, attempt: Try) -> int:
    """The first of most, most / 2, … that fits with headroom."""
    rows = most
    while True:
        try:
            attempt(rows + rows // HEADROOM)
        except torch.OutOfMemoryError:
            if rows == 1:
                raise
            rows = max(1, rows // 2)
        else:
            return rows


def agreed(rows: int, channel: Channel) -> int:
    """The least of all trainers' numbers."""
    return min(each[0] for each in channel.gather([rows]))
