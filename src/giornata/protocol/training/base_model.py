"""The model that is fine-tuned."""

from pydantic import AliasChoices, Field

from giornata.protocol.model import Message
from giornata.protocol.training.text import ModelName


class BaseModelFields(Message):
    """The model that is fine-tuned."""

    pretrained_model_name_or_path: ModelName = Field(
        description="Hub id, or a folder in diffusers layout on the node.",
        validation_alias=AliasChoices("pretrained_model_name_or_path", "model"),
    )
    revision: str | None = Field(None, max_length=128, description="Branch, tag or commit on the hub.")
    variant: str | None = Field(None, max_length=32, description="Weight files' variant, such as fp16.")
    pretrained_vae_model_name_or_path: ModelName | None = Field(
        None, description="Another VAE, such as madebyollin/sdxl-vae-fp16-fix."
    )
