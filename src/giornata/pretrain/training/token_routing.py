"""Less work for each picture: a random share of the image's tokens passes by the transformer blocks in the middle of
the UNet while it trains (after TREAD, Krause et al., 2025, arXiv 2501.04765, which does it to transformers alone).

Tokens that pass by are what they were, and meet the others again after each block. Convolutions, and the blocks at
the highest resolution on the way in and out, see all of them; so does the model when it is not training.

Shapes: B pictures, N tokens of one level, K of them that go through, D channels.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from diffusers import UNet2DConditionModel
from diffusers.models.attention import BasicTransformerBlock
from torch import nn

from giornata.diffusion.draws import randomness

PURPOSE = "pretrain/token-routing"
Place = tuple[int, int, str]
"""(phase, epoch, key): whose tokens."""


def routed_blocks(unet: UNet2DConditionModel) -> list[BasicTransformerBlock]:
    """All transformer blocks but those at the highest resolution."""
    middle = () if unet.mid_block is None else (unet.mid_block,)
    parts = (*unet.down_blocks[1:], *middle, *unet.up_blocks[:-1])
    return [module for part in parts for module in part.modules() if isinstance(module, BasicTransformerBlock)]


class TokenRouting:
    """Put on a UNet once. Which tokens pass by is a function of (seed, phase, epoch, key, number of tokens)."""

    def __init__(self, unet: UNet2DConditionModel, *, share: float, seed: int) -> None:
        self._share, self._seed = share, seed
        self._places: Sequence[Place] = ()
        self._kept: dict[int, torch.Tensor] = {}
        self._whole: dict[nn.Module, tuple[torch.Tensor, torch.Tensor]] = {}
        for block in routed_blocks(unet):
            block.register_forward_pre_hook(self._choose)
            block.register_forward_hook(self._join)

    @contextmanager
    def routing(self, places: Sequence[Place]) -> Iterator[None]:
        """Around forward and backward pass of these pictures. Without places all tokens go through."""
        self._places = places
        try:
            yield
        finally:
            self._places = ()
            self._kept.clear()
            self._whole.clear()

    def _choose(self, block: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not self._places:
            return None
        tokens_BND: torch.Tensor = args[0]
        kept_BK = self._kept_tokens(tokens_BND.shape[1], tokens_BND.device)
        index_BKD = kept_BK[:, :, None].expand(-1, -1, tokens_BND.shape[2])
        self._whole[block] = tokens_BND, index_BKD
        return tokens_BND.gather(1, index_BKD), *args[1:]

    def _join(self, block: nn.Module, _: tuple[Any, ...], out_BKD: torch.Tensor) -> torch.Tensor | None:
        if block not in self._whole:
            return None
        tokens_BND, index_BKD = self._whole.pop(block)
        return tokens_BND.to(out_BKD.dtype).scatter(1, index_BKD, out_BKD)

    def _kept_tokens(self, count: int, device: torch.device) -> torch.Tensor:
        if count not in self._kept:
            through = max(1, round(count * (1 - self._share)))
            orders = [randomness.permutation(self._seed, PURPOSE, *place, count, n=count) for place in self._places]
            kept_BK = torch.tensor([sorted(order[:through]) for order in orders])
            if device.type == "cuda":
                kept_BK = kept_BK.pin_memory()  # or the copy would wait for what is under way on the device
            self._kept[count] = kept_BK.to(device, non_blocking=True)
        return self._kept[count]
