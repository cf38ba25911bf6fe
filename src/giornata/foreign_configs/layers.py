"""The layers that each trainer adapts, by their names in diffusers' models."""

ATTENTION = ("to_k", "to_q", "to_v", "to_out.0")
TRANSFORMER = (*ATTENTION, "ff.net.0.proj", "ff.net.2", "proj_in", "proj_out")
"""All of a Transformer2DModel: sd-scripts' networks.lora, LyCORIS's attn-mlp, OneTrainer's attn-mlp."""
RESNET_LINEAR = ("time_emb_proj", "conv_shortcut")
CONVOLUTIONS = ("conv1", "conv2", "downsamplers.0.conv", "upsamplers.0.conv")
"""3 x 3, inside of blocks."""
ENDS = ("conv_in", "conv_out", "time_embedding.linear_1", "time_embedding.linear_2")
EVERY_LINEAR = (
    *TRANSFORMER,
    *RESNET_LINEAR,
    "time_embedding.linear_1",
    "time_embedding.linear_2",
    "add_embedding.linear_1",
    "add_embedding.linear_2",
)
TEXT = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
