"""An SDXL of about 110 million parameters with random weights: large enough that arithmetic counts, for two cores."""

from pathlib import Path

import torch
from diffusers import AutoencoderKL, StableDiffusionXLPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from giornata.diffusion.tiny.place_model import place_model
from giornata.diffusion.tiny.tiny_model import PAD_TOKENS, WORDS, scheduler, tokenizer

HIDDEN = 128


def build(directory: Path) -> Path:
    """Build it at `directory`, in the layout of diffusers; one that is there already is kept."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pipeline = _pipeline()
    return place_model(directory, pipeline.save_pretrained)


def _pipeline() -> StableDiffusionXLPipeline:
    tokenizers = [tokenizer(WORDS, pad_token=pad) for pad in PAD_TOKENS]
    config = CLIPTextConfig(
        vocab_size=len(tokenizers[0]),
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        projection_dim=HIDDEN,
        num_hidden_layers=4,
        num_attention_heads=4,
        bos_token_id=tokenizers[0].bos_token_id,
        eos_token_id=tokenizers[0].eos_token_id,
        pad_token_id=tokenizers[0].pad_token_id,
    )
    unet = UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(96, 192, 384),
        layers_per_block=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 4),
        attention_head_dim=(3, 6, 12),
        cross_attention_dim=2 * HIDDEN,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=6 * 8 + HIDDEN,
    )
    vae = AutoencoderKL(
        sample_size=64,
        block_out_channels=(16, 32, 32, 32),
        layers_per_block=1,
        norm_num_groups=8,
        latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        scaling_factor=0.13025,
    )
    return StableDiffusionXLPipeline(
        vae=vae,
        text_encoder=CLIPTextModel(config),
        text_encoder_2=CLIPTextModelWithProjection(config),
        tokenizer=tokenizers[0],
        tokenizer_2=tokenizers[1],
        unet=unet,
        scheduler=scheduler("epsilon"),
        add_watermarker=False,
    )
