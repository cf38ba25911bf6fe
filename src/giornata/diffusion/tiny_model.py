"""Builds a model of SDXL's architecture that is small enough for a test: 1.5 million parameters, 6 MB.

    python -m giornata.diffusion.tiny_model DIR

Every weight is a function of its name (`giornata.diffusion.randomness`), so two builds give the same bytes,
whatever the state of torch's generators or the number of threads. Most weights stay random; a few are set by
hand (`giornata.diffusion.tiny_weights`), so that its pictures mean something: the VAE keeps an 8 x 8 thumbnail
of a 64 px picture and the UNet is a crude denoiser whose errors depend on the prompt.
"""

import argparse
from pathlib import Path

import torch
from diffusers import AutoencoderKL, StableDiffusionXLPipeline, UNet2DConditionModel
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from giornata.diffusion.tiny_parts import PAD_TOKENS, place_model, scheduler, text_config, tokenizer
from giornata.diffusion.tiny_weights import set_text_weights, set_unet_weights, set_vae_weights
from giornata.domain.errors import InvalidInput

HIDDEN = 32
WORDS = (  # noqa: SIM905 - a list of fifty lines reads worse
    "a an the of on in with and photo picture painting drawing sks toy dog cat bird person man woman house car "
    "tree flower heart star circle square triangle ring cross shape red green blue yellow purple orange pink "
    "cyan teal white black gray brown background style portrait landscape"
).split()


def build_tiny_model(directory: Path) -> Path:
    """Build the model at `directory` and return it. A complete one that is there already is kept.

    Raises InvalidInput when something else is at `directory`.
    """
    return place_model(directory, lambda built: tiny_pipeline().save_pretrained(built, safe_serialization=True))


def tiny_pipeline() -> StableDiffusionXLPipeline:
    """The tiny model in memory, fp32 on the CPU. Leaves torch's random state as it was."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        tokenizers = [tokenizer(WORDS, pad_token=pad) for pad in PAD_TOKENS]
        config = text_config(tokenizers[0], hidden=HIDDEN)
        first, second = CLIPTextModel(config), CLIPTextModelWithProjection(config)
        unet, vae = _unet(), _vae()
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


def _unet() -> UNet2DConditionModel:
    return UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(32, 64),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2),
        attention_head_dim=(2, 4),
        cross_attention_dim=2 * HIDDEN,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=6 * 8 + HIDDEN,
    )


def _vae() -> AutoencoderKL:
    return AutoencoderKL(
        sample_size=64,
        block_out_channels=(8, 16, 16, 16),
        layers_per_block=1,
        norm_num_groups=1,
        latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        scaling_factor=0.13025,
        force_upcast=True,
    )


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m giornata.diffusion.tiny_model", description=__doc__)
    parser.add_argument("directory", type=Path, help="where to put the model")
    try:
        build_tiny_model(parser.parse_args(arguments).directory)
    except InvalidInput as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
