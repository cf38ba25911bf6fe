"""Learning rates by block of the UNet, and sd-scripts' `block_lr` in these terms."""

from typing import Any

SDXL_BLOCK_LR = (
    ("time_embedding", "add_embedding"),
    ("conv_in",),
    *((f"down_blocks.0.resnets.{number}",) for number in range(2)),
    ("down_blocks.0.downsamplers.0",),
    *((f"down_blocks.1.resnets.{number}", f"down_blocks.1.attentions.{number}") for number in range(2)),
    ("down_blocks.1.downsamplers.0",),
    *((f"down_blocks.2.resnets.{number}", f"down_blocks.2.attentions.{number}") for number in range(2)),
    ("mid_block.resnets.0",),
    ("mid_block.attentions.0",),
    ("mid_block.resnets.1",),
    *((f"up_blocks.0.resnets.{number}", f"up_blocks.0.attentions.{number}") for number in range(2)),
    ("up_blocks.0.resnets.2", "up_blocks.0.attentions.2", "up_blocks.0.upsamplers.0"),
    *((f"up_blocks.1.resnets.{number}", f"up_blocks.1.attentions.{number}") for number in range(2)),
    ("up_blocks.1.resnets.2", "up_blocks.1.attentions.2", "up_blocks.1.upsamplers.0"),
    *((f"up_blocks.2.resnets.{number}",) for number in range(3)),
    ("conv_out",),
)
"""What each of sd-scripts' 23 rates is for, by diffusers' names: the embeddings, input blocks 0 to 8, middle blocks 0
to 2, output blocks 0 to 8, and the output."""


def read(given: Any) -> Any:
    """23 rates, as a list or as text with commas, as a dictionary; anything else as it is. Raises ValueError for
    another number of them."""
    rates = given.split(",") if isinstance(given, str) else given
    if not isinstance(rates, list | tuple):
        return given
    if len(rates) != len(SDXL_BLOCK_LR):
        raise ValueError(
            f"{len(rates)} rates, and block_lr has {len(SDXL_BLOCK_LR)}; or name blocks with their rates"
        )
    return {name: rate for names, rate in zip(SDXL_BLOCK_LR, rates, strict=True) for name in names}


def plain(name: str) -> str:
    """The name of a block without the UNet's."""
    return name.removeprefix("unet.")
