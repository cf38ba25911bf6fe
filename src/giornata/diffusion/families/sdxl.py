"""Stable Diffusion XL (Podell et al., 2023, arXiv 2307.01952): two text encoders, pooled text, micro-conditioning."""

from giornata.diffusion.families.family import Family, TextEncoder
from giornata.diffusion.kohya_names import kohya_name

SDXL = Family(
    name="sdxl",
    title="Stable Diffusion XL",
    pipeline="StableDiffusionXLPipeline",
    pipelines=frozenset({"StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline"}),
    pipeline_options={"add_watermarker": False},
    text_encoders=(
        TextEncoder(folder="text_encoder", tokenizer="tokenizer", class_name="CLIPTextModel"),
        TextEncoder(folder="text_encoder_2", tokenizer="tokenizer_2", class_name="CLIPTextModelWithProjection"),
    ),
    hidden_layer=-2,
    pooled=True,
    unet_settings={"addition_embed_type": "text_time", "in_channels": 4, "out_channels": 4},
    guidance_scale=5.0,
    kohya_name=kohya_name,
    base_model_version="sdxl_base_v1-0",
    architecture="stable-diffusion-xl-v1-base",
    implementation="https://github.com/Stability-AI/generative-models",
    hub_tags=("stable-diffusion-xl", "stable-diffusion-xl-diffusers"),
    single_file_keys={
        "UNet": "model.diffusion_model.input_blocks.0.0.weight",
        "UNet's added conditioning": "model.diffusion_model.label_emb.0.0.weight",
        "VAE": "first_stage_model.encoder.conv_in.weight",
        "first text encoder": "conditioner.embedders.0.transformer.text_model.embeddings.token_embedding.weight",
        "second text encoder": "conditioner.embedders.1.model.token_embedding.weight",
    },
)
