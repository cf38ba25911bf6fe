"""A small network with all parts of a real one: convolutions, norms, attention, and adapters on a frozen base.

Every number in it comes from a seed, so it is the same on every machine. Only operations whose backward pass repeats
itself on CUDA are used.

Shapes: B pictures; C channels; H, W; T = H·W tokens; r the adapters' rank.
"""

import math

import torch
from torch import nn
from torch.nn import functional

from giornata.diffusion.draws.randomness import normal

SEED = 20_260_501
RANK = 4
GROUPS = 8


class Adapted(nn.Module):
    """A frozen linear layer and a low-rank adapter on it (Hu et al., "LoRA", arXiv 2106.09685)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.base = nn.Linear(channels, channels, bias=False)
        self.lora_A = nn.Linear(channels, RANK, bias=False)
        self.lora_B = nn.Linear(RANK, channels, bias=False)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        """Compute W·x + B·A·x for the inputs x."""
        return self.base(x_BTC) + self.lora_B(self.lora_A(x_BTC))


class Attention(nn.Module):
    """Self-attention, written out: fused kernels do not all repeat themselves backwards."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.to_q, self.to_k, self.to_v, self.to_out = (Adapted(channels) for _ in range(4))

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Add to each place the attention over all others."""
        height, width = x_BCHW.shape[-2:]
        tokens_BTC = self.norm(x_BCHW).flatten(2).transpose(1, 2)
        q, k, v = self.to_q(tokens_BTC), self.to_k(tokens_BTC), self.to_v(tokens_BTC)
        weights_BTT = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), dim=-1)
        return x_BCHW + self.to_out(weights_BTT @ v).transpose(1, 2).unflatten(2, (height, width))


class Residual(nn.Module):
    """Norm, activation, convolution, and the connection around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Add the block's change to the input, and keep the shape."""
        return x_BCHW + self.conv(functional.silu(self.norm(x_BCHW)))


class SmallUNet(nn.Module):
    """One level down and up again, with a connection across."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(4, channels, 3, padding=1)
        self.down = nn.ModuleList([Residual(channels), Attention(channels)])
        self.narrow = nn.Conv2d(4 * channels, channels, 1)
        self.middle = nn.ModuleList([Residual(channels), Attention(channels), Residual(channels)])
        self.widen = nn.Conv2d(channels, 4 * channels, 1)
        self.up = nn.ModuleList([Residual(channels), Attention(channels)])
        self.conv_out = nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Predict a tensor of the input's shape."""
        hidden = self.conv_in(x_BCHW)
        for part in self.down:
            hidden = part(hidden)
        across, hidden = hidden, self.narrow(functional.pixel_unshuffle(hidden, 2))
        for part in self.middle:
            hidden = part(hidden)
        hidden = across + functional.pixel_shuffle(self.widen(hidden), 2)
        for part in self.up:
            hidden = part(hidden)
        return self.conv_out(hidden)


def build(channels: int, device: torch.device, *, adapters: str) -> SmallUNet:
    """Build the network on the device. Its base is always the same one; `adapters` names the draw of the adapters,
    whose parameters are the only ones that learn."""
    with torch.device("meta"):
        model = SmallUNet(channels)
    model.to_empty(device="cpu")
    for name, parameter in model.named_parameters():
        learns = ".lora_" in name
        values = _values(name, parameter, adapters if learns else "base")
        parameter.data.copy_(values)
        parameter.requires_grad_(learns)
    return model.to(device)


def _values(name: str, parameter: torch.Tensor, draw: str) -> torch.Tensor:
    if parameter.dim() == 1:
        return torch.full_like(parameter, 1.0 if "norm.weight" in name else 0.0)
    fan_in = parameter[0].numel()
    return normal(SEED, "canary", draw, name, shape=tuple(parameter.shape)) / math.sqrt(fan_in)


def learned(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the adapters' weights by name, as they are now."""
    return {name: each.detach().clone() for name, each in model.named_parameters() if each.requires_grad}
