"""The weights of the tiny model.

Shapes: O output channels, I input channels, K kernel side.

A pair of channels +z and -z carries a signal through SiLU unharmed: silu(z) - silu(-z) = z, because
silu(z) = z·s(z) and s(z) + s(-z) = 1 for the logistic function s. With the blocks before reduced to copies
(a resnet whose second convolution is 0 returns its input), the VAE is a linear thumbnail and the UNet passes
its noisy input on.
"""

import math
from collections.abc import Callable

import torch
from torch import nn

from giornata.diffusion.draws.randomness import normal

SEED = 20_221_013
PURPOSE = "tiny-model"
COLORS = 3
LATENTS = 4
# A GroupNorm over all channels would take the picture's own contrast away; two constant channels, much larger
# than any color, fix its scale.
ANCHOR = 8.0
LATENT_GAIN = 12.0  # so that SDXL's scaling factor of 0.13025 brings latents of pictures to about unit deviation
LOG_VARIANCE = -10.0
DENOISE_GAIN = 0.85  # less than 1: early inputs are mostly picture, and what is left of the noise gives variety
TEXTURE_GAIN = 0.2
ATTENTION_GAIN = 3.0  # sharp enough that one word outweighs 70 padding tokens


def draw_weights(
    model: nn.Module, name: str, *, purpose: str = PURPOSE, gain: Callable[[str], float] | None = None
) -> None:
    """Fill `model`: norms 1, biases 0, matrices and kernels normal with deviation gain(parameter) / sqrt(fan-in)."""
    gain = gain or _gain
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0 if "norm" in key and key.endswith("weight") else 0.0)
                continue
            values = normal(SEED, purpose, name, key, shape=tuple(parameter.shape))
            fan_in = math.prod(parameter.shape[1:])
            parameter.copy_(values * (gain(key) / math.sqrt(fan_in)))


def _gain(key: str) -> float:
    if "token_embedding" in key or "position_embedding" in key:
        return 4.0  # CLIP's own deviation of 0.02 would make all prompts alike
    if key.endswith(("attn2.to_q.weight", "attn2.to_k.weight", "attn2.to_out.0.weight")):
        return ATTENTION_GAIN
    return 1.0


def set_text_weights(model: nn.Module, name: str) -> None:
    """Set random features of the text."""
    draw_weights(model, name)


def set_unet_weights(unet: nn.Module) -> None:
    """Set weights with which eps = DENOISE_GAIN · normalized input + TEXTURE_GAIN · random features of input, time
    and text.

    Channels 0-3 of the first convolution carry the input, 4-7 its negative. The last resnet gets them back over
    the skip connection and hands them on untouched; they fill the first two groups of the last norm.
    """
    draw_weights(unet, "unet")
    pairs = 2 * LATENTS
    last = unet.up_blocks[-1].resnets[-1]
    from_below = last.conv_shortcut.weight.shape[1] - unet.conv_in.weight.shape[0]
    with torch.no_grad():
        _copy_pairs(unet.conv_in.weight, LATENTS)
        last.conv2.weight[:pairs] = 0
        last.conv_shortcut.weight[:pairs] = 0
        for channel in range(pairs):
            last.conv_shortcut.weight[channel, from_below + channel] = 1
        unet.conv_out.weight.mul_(TEXTURE_GAIN)
        unet.conv_out.weight[:, :pairs] = 0
        for channel in range(LATENTS):
            unet.conv_out.weight[channel, channel, 1, 1] = DENOISE_GAIN
            unet.conv_out.weight[channel, LATENTS + channel, 1, 1] = -DENOISE_GAIN


def set_vae_weights(vae: nn.Module) -> None:
    """Set the VAE's weights. Encoder: three 2 x 2 averages. Decoder: three smoothed doublings. Latents: R, G, B and
    brightness."""
    draw_weights(vae, "vae")
    with torch.no_grad():
        for part in (vae.encoder, vae.decoder):
            _pass_on(part)
        _copy_pairs(vae.encoder.conv_in.weight, COLORS)
        _anchor(vae.encoder.conv_in.bias)
        for block in vae.encoder.down_blocks[:-1]:
            # padded on the right and below: taps 0 and 1 are the pixel and its neighbor
            _each_channel(block.downsamplers[0].conv.weight, torch.tensor([0.5, 0.5, 0.0]))
        for block in vae.decoder.up_blocks[:-1]:
            _each_channel(block.upsamplers[0].conv.weight, torch.tensor([0.25, 0.5, 0.25]))
        _latents_from_colors(vae)
        _colors_from_latents(vae)


def _pass_on(part: nn.Module) -> None:
    """Make every resnet and the attention of an encoder or decoder return its input."""
    for module in part.modules():
        if hasattr(module, "conv2"):
            module.conv2.weight.zero_()
            shortcut = getattr(module, "conv_shortcut", None)
            if shortcut is not None:
                shortcut.weight.zero_()
                for channel in range(min(shortcut.weight.shape[:2])):
                    shortcut.weight[channel, channel] = 1
        if hasattr(module, "to_out"):
            module.to_out[0].weight.zero_()


def _copy_pairs(weight_OIKK: torch.Tensor, inputs: int) -> None:
    weight_OIKK[: 2 * inputs] = 0
    for channel in range(inputs):
        weight_OIKK[channel, channel, 1, 1] = 1
        weight_OIKK[inputs + channel, channel, 1, 1] = -1


def _anchor(bias_O: torch.Tensor) -> None:
    bias_O[2 * COLORS], bias_O[2 * COLORS + 1] = ANCHOR, -ANCHOR


def _each_channel(weight_OIKK: torch.Tensor, taps_K: torch.Tensor) -> None:
    weight_OIKK.zero_()
    for channel in range(weight_OIKK.shape[0]):
        weight_OIKK[channel, channel] = taps_K[:, None] * taps_K[None, :]


def _undo_norm(norm: nn.GroupNorm) -> None:
    """Scale the norm back: it divides by the deviation over all channels, nearly all of which is the two anchors'."""
    norm.weight.fill_(ANCHOR * math.sqrt(2 / norm.num_channels))


def _latents_from_colors(vae: nn.Module) -> None:
    out = vae.encoder.conv_out
    _undo_norm(vae.encoder.conv_norm_out)
    out.weight.zero_()
    out.bias.zero_()
    for color in range(COLORS):
        for latent, share in ((color, 1.0), (COLORS, 1 / COLORS)):
            out.weight[latent, color, 1, 1] = LATENT_GAIN * share
            out.weight[latent, COLORS + color, 1, 1] = -LATENT_GAIN * share
    out.bias[LATENTS:] = LOG_VARIANCE
    _each_channel(vae.quant_conv.weight, torch.ones(1))


def _colors_from_latents(vae: nn.Module) -> None:
    """Return the pseudo-inverse of `_latents_from_colors`: c - (R + G + B)/12 + brightness/4 for each color c."""
    _each_channel(vae.post_quant_conv.weight, torch.ones(1))
    first, last = vae.decoder.conv_in, vae.decoder.conv_out
    first.weight.zero_()
    for color in range(COLORS):
        for latent in range(LATENTS):
            share = 1 / 4 if latent == COLORS else (latent == color) - 1 / 12
            first.weight[color, latent, 1, 1] = share / LATENT_GAIN
            first.weight[COLORS + color, latent, 1, 1] = -share / LATENT_GAIN
    _anchor(first.bias)
    _undo_norm(vae.decoder.conv_norm_out)
    last.weight.zero_()
    for color in range(COLORS):
        last.weight[color, color, 1, 1] = 1
        last.weight[color, COLORS + color, 1, 1] = -1
