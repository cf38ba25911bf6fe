"""The pictures of one forward and backward pass: as many as the phase says, or as fit, found by trial."""

from collections.abc import Callable

import torch
from diffusers import UNet2DConditionModel

from giornata.pretrain.run_state.peers import Channel, Peers
from giornata.pretrain.training.models import answer_to_zeros
from giornata.protocol.pretraining import LATENT_SIDE_PX, Parallel, Precision, Train

CPU_ROWS = 64
"""On a CPU, where nothing runs out early and larger passes are not faster."""
HEADROOM, MOMENTS = 8, 2
"""A size is taken when an eighth more fits too: batches of other shapes and the allocator's gaps need room."""

Try = Callable[[int], None]
"""Runs a forward and backward pass of so many rows, with everything else that a step holds in memory. Raises
torch.OutOfMemoryError."""


def share_of(global_batch_size: int, world: int) -> int:
    """The most rows that one trainer has in a step."""
    return -(-global_batch_size // world)


def micro_batch(most: int, device: torch.device, attempt: Try, channel: Channel) -> int:
    """Find a micro-batch that fits, the same for all trainers: `most`, halved as often as needed.

    Raises torch.OutOfMemoryError when not even one row does.
    """
    if device.type != "cuda":
        return min(most, CPU_ROWS)
    return min(rows for (rows,) in channel.gather([fitting(most, attempt)]))


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


class Trial:
    """Passes of one UNet on its device that only show whether they fit, before the model is spread over the trainers.
    Leaves no gradient behind.

    Trying the sharded model would need all trainers to run out of memory in the same pass. This way each tries alone,
    with room taken for what a step holds besides.
    """

    def __init__(self, unet: UNet2DConditionModel, train: Train, device: torch.device, peers: Peers) -> None:
        self._unet, self._train, self._device = unet, train, device
        self._shards = peers.world if train.parallel is not Parallel.DDP else 1

    def of(self, resolution: int) -> Callable[[int], None]:
        """A function that tries passes of a number of rows at this resolution."""
        side, bf16 = resolution // LATENT_SIDE_PX, self._train.mixed_precision is Precision.BF16

        def attempt(rows: int) -> None:
            if self._train.gradient_checkpointing:
                self._unet.enable_gradient_checkpointing()
            try:
                room = self._room()
                with torch.autocast(self._device.type, torch.bfloat16, enabled=bf16):
                    answer_BCHW = answer_to_zeros(self._unet, rows=rows, side=side, device=self._device)
                answer_BCHW.float().square().sum().backward()
                del room
            finally:
                self._unet.zero_grad(set_to_none=True)
                self._unet.disable_gradient_checkpointing()
                torch.cuda.empty_cache()

        return attempt

    def _room(self) -> torch.Tensor:
        """Memory as large as moments and average."""
        copies = MOMENTS + (1 if self._train.use_ema else 0)
        count = sum(each.numel() for each in self._unet.parameters()) * copies // self._shards
        return torch.empty(count, dtype=torch.float32, device=self._device)
