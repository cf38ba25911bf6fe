"""A forward and backward pass that only shows whether it fits, before the model is spread over the trainers.

Trying the sharded model would need all trainers to run out of memory in the same pass; this way each tries alone,
with room taken for what a step holds besides.
"""

from collections.abc import Callable

import torch
from diffusers import UNet2DConditionModel

from giornata.pretrain.training.models import TOKENS, conditions, widths
from giornata.pretrain.training.peers import Peers
from giornata.protocol.pretraining import LATENT_SIDE_PX, Parallel, Precision, Train

MOMENTS = 2


class Trial:
    """Of one UNet on its device. Leaves no gradient behind."""

    def __init__(self, unet: UNet2DConditionModel, train: Train, device: torch.device, peers: Peers) -> None:
        self._unet, self._train, self._device = unet, train, device
        self._shards = peers.world if train.parallel is not Parallel.DDP else 1

    def of(self, resolution: int) -> Callable[[int], None]:
        """Tries so many rows. Raises torch.OutOfMemoryError."""
        side = resolution // LATENT_SIDE_PX

        def attempt(rows: int) -> None:
            self._configure()
            try:
                room = self._room()
                self._pass(rows, side)
                del room
            finally:
                self._unet.zero_grad(set_to_none=True)
                self._unet.disable_gradient_checkpointing()
                torch.cuda.empty_cache()

        return attempt

    def _configure(self) -> None:
        if self._train.gradient_checkpointing:
            self._unet.enable_gradient_checkpointing()

    def _room(self) -> torch.Tensor:
        """What moments and the average will take."""
        copies = MOMENTS + (1 if self._train.use_ema else 0)
        count = sum(each.numel() for each in self._unet.parameters()) * copies // self._shards
        return torch.empty(count, dtype=torch.float32, device=self._device)

    def _pass(self, rows: int, side: int) -> None:
        bf16 = self._train.mixed_precision is Precision.BF16
        with torch.autocast(self._device.type, torch.bfloat16, enabled=bf16):
            answer_BCHW = self._unet(
                torch.zeros(rows, 4, side, side, device=self._device),
                torch.zeros(rows, dtype=torch.int64, device=self._device),
                torch.zeros(rows, TOKENS, widths(self._unet)[0], device=self._device),
                added_cond_kwargs=conditions(self._unet, rows, self._device),
                return_dict=False,
            )[0]
        answer_BCHW.float().square().sum().backward()
