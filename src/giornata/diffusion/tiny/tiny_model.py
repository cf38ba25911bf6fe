"""Builds a model of SDXL's architecture that is small enough for a test: 1.5 million parameters, 6 MB.

    python -m giornata.diffusion.tiny.tiny_model DIR [--family sd15]

And one of Stable Diffusion 1.5's, made in the same way.

Every weight is a function of its name (`giornata.diffusion.draws.randomness`), so two builds give the same bytes,
whatever the state of torch's generators or the number of threads. Most weights stay random; a few are set by
hand (`giornata.diffusion.tiny.tiny_weights`), so that its pictures mean something: the VAE keeps an 8 x 8 thumbnail
of a 64 px picture and the UNet is a crude denoiser whose errors depend on the prompt.
"""

import argparse
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    EulerDiscreteScheduler,
    PNDMScheduler,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from tokenizers.pre_tokenizers import ByteLevel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from giornata.diffusion.families import FAMILIES, SD15, SDXL, Family, family_named
from giornata.diffusion.tiny.place_model import place_model
from giornata.diffusion.tiny.tiny_sizes import HIDDEN, MAX_TOKENS, SCHEDULE, UNET_SHAPE, unet_settings
from giornata.diffusion.tiny.tiny_weights import set_text_weights, set_unet_weights, set_vae_weights
from giornata.domain.errors import InvalidInput

# ---- parts of small models: SDXL's scheduler, CLIP's text configuration and tokenizer at a small size

PAD_TOKENS = ("<|endoftext|>", "!")  # SDXL's two tokenizers differ in nothing else


def scheduler(prediction_type: str) -> EulerDiscreteScheduler:
    """Return a scheduler with SDXL's own settings."""
    return EulerDiscreteScheduler(
        **SCHEDULE, prediction_type=prediction_type, timestep_spacing="leading", steps_offset=1
    )


def text_config(tokenizer: CLIPTokenizer, *, hidden: int) -> CLIPTextConfig:
    """Return a config of two layers with four heads, of this width."""
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        projection_dim=hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=MAX_TOKENS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def tokenizer(words: Sequence[str], *, pad_token: str, whole: bool = False) -> CLIPTokenizer:
    """Make CLIP's byte-level BPE over all 256 bytes, so that any text tokenizes, with merges for `words`.

    A merge of one word may cut another in two; with `whole`, each word is one token for certain.
    """
    alphabet = sorted(ByteLevel.alphabet())
    merges = _merges(words, whole=whole)
    tokens = [*alphabet, *(f"{char}</w>" for char in alphabet), *(left + right for left, right in merges)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=merges,
        pad_token=pad_token,
        model_max_length=MAX_TOKENS,
    )


def _merges(words: Sequence[str], *, whole: bool) -> list[tuple[str, str]]:
    """Return the merges from left to right within each word: (d, o), (do, g</w>). With `whole`, of what the merges so
    far leave of it."""
    merges: dict[tuple[str, str], None] = {}
    for word in words:
        symbols = [*word[:-1], f"{word[-1]}</w>"]
        if whole:
            symbols = _merged(symbols, list(merges))
        joined = symbols[0]
        for symbol in symbols[1:]:
            merges[joined, symbol] = None
            joined += symbol
    return list(merges)


def _merged(symbols: list[str], merges: Sequence[tuple[str, str]]) -> list[str]:
    """Apply byte-pair encoding: of all pairs of neighbors, the one whose merge came first is joined, again and
    again."""
    rank = {pair: number for number, pair in enumerate(merges)}
    while pairs := [pair for pair in pairwise(symbols) if pair in rank]:
        first = min(pairs, key=lambda pair: rank[pair])
        place = list(pairwise(symbols)).index(first)
        symbols = [*symbols[:place], "".join(first), *symbols[place + 2 :]]
    return symbols


WORDS = (  # noqa: SIM905 - a list of fifty lines reads worse
    "a an the of on in with and photo picture painting drawing sks toy dog cat bird person man woman house car "
    "tree flower heart star circle square triangle ring cross shape red green blue yellow purple orange pink "
    "cyan teal white black gray brown background style portrait landscape"
).split()


def build_tiny_model(directory: Path, family: Family = SDXL) -> Path:
    """Build the model at `directory` and return it. A complete one that is there already is kept.

    Raises InvalidInput when something else is at `directory`.
    """
    pipeline = PIPELINES[family.name]
    return place_model(
        directory, lambda built: pipeline().save_pretrained(built, safe_serialization=True), family=family
    )


def tiny_pipeline(second_hidden: int = HIDDEN) -> StableDiffusionXLPipeline:
    """Make the tiny model in memory, fp32 on the CPU. Leaves torch's random state as it was. SDXL's own second text
    encoder is wider than its first: `second_hidden` is that of the second."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        tokenizers = [tokenizer(WORDS, pad_token=pad) for pad in PAD_TOKENS]
        first = CLIPTextModel(text_config(tokenizers[0], hidden=HIDDEN))
        second = CLIPTextModelWithProjection(text_config(tokenizers[0], hidden=second_hidden))
        unet, vae = UNet2DConditionModel(**unet_settings(second_hidden)), _vae()
    set_text_weights(first, "text_encoder")
    set_text_weights(second, "text_encoder_2")
    set_unet_weights(unet)
    set_vae_weights(vae)
    return StableDiffusionXLPipeline(
        vae=vae,
        text_encoder=first,
        text_encoder_2=second,
        tokenizer=tokenizers[0],
        tokenizer_2=tokenizers[1],
        unet=unet,
        scheduler=scheduler("epsilon"),
        add_watermarker=False,
    )


def tiny_sd15_pipeline() -> StableDiffusionPipeline:
    """Make a tiny model of Stable Diffusion 1.5's architecture, as `tiny_pipeline` does: one text encoder,
    convolutions around its attention, nothing added to the time."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        words = tokenizer(WORDS, pad_token=PAD_TOKENS[0])
        encoder = CLIPTextModel(text_config(words, hidden=HIDDEN))
        unet, vae = _sd15_unet(), _vae(scaling_factor=0.18215)
    set_text_weights(encoder, "text_encoder")
    set_unet_weights(unet)
    set_vae_weights(vae)
    return StableDiffusionPipeline(
        vae=vae,
        text_encoder=encoder,
        tokenizer=words,
        unet=unet,
        scheduler=PNDMScheduler(
            **SCHEDULE, set_alpha_to_one=False, skip_prk_steps=True, timestep_spacing="leading", steps_offset=1
        ),
        **SD15.pipeline_options,
    )


PIPELINES = {SDXL.name: tiny_pipeline, SD15.name: tiny_sd15_pipeline}


def _sd15_unet() -> UNet2DConditionModel:
    return UNet2DConditionModel(
        **UNET_SHAPE, attention_head_dim=4, cross_attention_dim=HIDDEN, use_linear_projection=False
    )


def _vae(scaling_factor: float = 0.13025) -> AutoencoderKL:
    return AutoencoderKL(
        sample_size=64,
        block_out_channels=(8, 16, 16, 16),
        layers_per_block=1,
        norm_num_groups=1,
        latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        scaling_factor=scaling_factor,
        force_upcast=True,
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m giornata.diffusion.tiny.tiny_model", description=__doc__)
    parser.add_argument("directory", type=Path, help="where to put the model")
    names = [family.name for family in FAMILIES]
    parser.add_argument("--family", choices=names, default=SDXL.name, help="which architecture; default: sdxl")
    given = parser.parse_args(arguments)
    try:
        build_tiny_model(given.directory, family_named(given.family))
    except InvalidInput as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
