"""The family Stable Diffusion 1.x (Rombach et al., 2022, arXiv 2112.10752), trained mostly as version 1.5: one text
encoder, whose last hidden states are all that conditions the UNet."""

from giornata.diffusion.families.family import Family, TextEncoder

KOHYA_PREFIXES = {"unet": "lora_unet", "text_encoder": "lora_te"}


def kohya_name(layer: str, *, layers_per_block: int = 2) -> str:
    """Return the name in kohya's files: `unet.mid_block.attentions.0.proj_in` →
    `lora_unet_mid_block_attentions_0_proj_in`; the text encoder likewise.

    For this family kohya's trainer keeps diffusers' names, whatever the number of layers. Raises KeyError for a
    layer of a model that it does not have.
    """
    del layers_per_block
    prefix, _, name = layer.partition(".")
    return f"{KOHYA_PREFIXES[prefix]}_{name.replace('.', '_')}"


SD15 = Family(
    name="sd15",
    title="Stable Diffusion 1.5",
    pipeline="StableDiffusionPipeline",
    pipelines=frozenset({"StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline"}),
    pipeline_options={"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False},
    text_encoders=(TextEncoder(folder="text_encoder", tokenizer="tokenizer", class_name="CLIPTextModel"),),
    hidden_layer=None,
    pooled=False,
    # Stable Diffusion 2 has linear projections around its attention, and is another family.
    unet_settings={
        "addition_embed_type": None,
        "use_linear_projection": False,
        "in_channels": 4,
        "out_channels": 4,
    },
    guidance_scale=7.5,
    kohya_name=kohya_name,
    base_model_version="sd_v1",
    architecture="stable-diffusion-v1",
    implementation="diffusers",
    hub_tags=("stable-diffusion", "stable-diffusion-diffusers"),
    single_file_keys={
        "UNet": "model.diffusion_model.input_blocks.0.0.weight",
        "VAE": "first_stage_model.encoder.conv_in.weight",
        "text encoder": "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight",
    },
    download_options={"safety_checker": None, "feature_extractor": None},
)
