"""Sizes of the tiny models, and the noise schedule of Stable Diffusion.

Loads no torch. A trainer of pre-training needs these, and none of the pipelines that `tiny_model` loads.
"""

from typing import Any

MAX_TOKENS = 77
SCHEDULE = {
    "num_train_timesteps": 1000,
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "beta_end": 0.012,
}
HIDDEN = 32
UNET_SHAPE = {
    "sample_size": 8,
    "in_channels": 4,
    "out_channels": 4,
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "norm_num_groups": 8,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
}


def unet_settings(second_hidden: int) -> dict[str, Any]:
    """Return the configuration of the tiny SDXL's UNet, whose second text encoder has this width."""
    return {
        **UNET_SHAPE,
        "transformer_layers_per_block": (1, 2),
        "attention_head_dim": (2, 4),
        "cross_attention_dim": HIDDEN + second_hidden,
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 6 * 8 + second_hidden,
    }
