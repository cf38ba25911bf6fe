"""One layer's low-rank update, as files of LoRAs hold it.

Shapes: R the rank, I and O the inputs and outputs of the layer, K K a convolution's kernel. The update of a linear
layer is scale · up_OR · down_RI. That of a convolution is `down` as a convolution of R outputs, and then up_OR at
each place, times the scale.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """The factors of one layer's update. `down` is R × I, or R × I × K × K; `scale` is alpha / rank."""

    down: torch.Tensor
    up_OR: torch.Tensor
    scale: float = 1.0

    @property
    def rank(self) -> int:
        """Return the rank of the factors."""
        return self.down.shape[0]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of both factors."""
        return self.down.nbytes + self.up_OR.nbytes

    def to(self, device: torch.device, dtype: torch.dtype) -> "LowRank":
        """Return the factors on this device, in this precision."""
        return LowRank(down=self.down.to(device, dtype), up_OR=self.up_OR.to(device, dtype), scale=self.scale)
