"""What one forward and backward pass takes.

Shapes: B rows of one size; C = 4 latent channels; H, W = pixels / 8; L tokens; D, P widths of the text. Latents and
text are float16; the loop makes float32 of them, of latents before and of text after it was moved to the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from giornata.pretrain.feeding.ledger import Use


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows that can be read and are of one size. `uses` name them for the ledger, `keys` and `epochs` for the draws.

    `time_ids_B6` is SDXL's micro-conditioning, float32, made for every model; those without it leave it alone.
    """

    uses: Sequence[Use]
    keys: Sequence[str]
    epochs: Sequence[int]
    mean_BCHW: torch.Tensor
    logvar_BCHW: torch.Tensor
    prompt_BLD: torch.Tensor
    pooled_BP: torch.Tensor | None
    time_ids_B6: torch.Tensor

    def __len__(self) -> int:
        return len(self.uses)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """What a trainer gets for one step: its share of the global batch, cut into batches of one size each, and the
    rows among them that could not be read. Empty when its stream has ended."""

    batches: Sequence[Batch]
    unreadable: Sequence[Use]
    wait_s: float
    """How long the trainer waited for it."""

    @property
    def rows(self) -> int:
        """Rows to train."""
        return sum(len(batch) for batch in self.batches)
