"""The model that is fine-tuned."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import AliasChoices, Field, model_validator

from giornata.protocol.model import Message, ModelName, Sha256
from giornata.protocol.secrets import SecretName


class BaseQuantization(StrEnum):
    """In how many bits the frozen base is held: as it was loaded, or in 8, whole numbers or floats (e4m3)."""

    NONE = "none"
    INT8 = "int8"
    FP8 = "fp8"


FP8_NAMES = ("fp8_base", "fp8_base_unet")


class BaseModelFields(Message):
    """The model that is fine-tuned."""

    pretrained_model_name_or_path: ModelName = Field(
        description="Hub id, or a folder in diffusers layout on the node; or a single .safetensors checkpoint: a "
        "path on the node, owner/name/file.safetensors, or the file's URL on the hub.",
        validation_alias=AliasChoices("pretrained_model_name_or_path", "model"),
    )
    pretrained_model_sha256: Sha256 | None = Field(
        None, description="Of a single checkpoint's bytes, which are hashed before they are used."
    )
    revision: str | None = Field(None, max_length=128, description="Branch, tag or commit on the hub.")
    variant: str | None = Field(None, max_length=32, description="Weight files' variant, such as fp16.")
    pretrained_vae_model_name_or_path: ModelName | None = Field(
        None,
        description="Another VAE, such as madebyollin/sdxl-vae-fp16-fix.",
        validation_alias=AliasChoices("pretrained_vae_model_name_or_path", "vae"),
    )
    hub_token_secret: SecretName | None = Field(
        None, description="Name of the project's secret that opens a gated model; its value is not in the spec."
    )
    base_quantization: BaseQuantization = Field(
        BaseQuantization.NONE,
        description="Hold the frozen UNet's weights in 8 bits, a scale for each output; products are made in the "
        "precision of mixed_precision all the same.",
    )
    fp8_base: bool = Field(
        False,
        exclude=True,
        description="kohya's way to say base_quantization fp8, which is how it is kept.",
        validation_alias=AliasChoices(*FP8_NAMES),
    )

    @model_validator(mode="before")
    @classmethod
    def _fp8(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or not any(given.get(name) is True for name in FP8_NAMES):
            return given
        return {"base_quantization": BaseQuantization.FP8, **given}
