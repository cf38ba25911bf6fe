"""The model that is fine-tuned."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import AliasChoices, Field, model_validator

from giornata.protocol.model import Message, ModelName, Sha256
from giornata.protocol.project.secrets import SecretName


class BaseQuantization(StrEnum):
    """The number of bits of the frozen base: as it was loaded, or 8, as whole numbers or floats (e4m3)."""

    NONE = "none"
    INT8 = "int8"
    FP8 = "fp8"


FP8_NAMES = ("fp8_base", "fp8_base_unet")


class BaseModelFields(Message):
    """The model that is fine-tuned."""

    pretrained_model_name_or_path: ModelName = Field(
        description="Base model: a registered model, a hub id, a folder in diffusers layout on the node, or a "
        ".safetensors checkpoint. A checkpoint is a path on the node, owner/name/file.safetensors, or the file's URL "
        "on the hub.",
        validation_alias=AliasChoices("pretrained_model_name_or_path", "model"),
    )
    pretrained_model_sha256: Sha256 | None = Field(
        None,
        description="sha256 of the base model, if it is a single checkpoint file. The node verifies the file before "
        "it uses it. Default: the server sets the sha256 of a registered model.",
    )
    revision: str | None = Field(
        None,
        max_length=128,
        description="Branch, tag or commit of the base model on the hub. Default: its main branch.",
    )
    variant: str | None = Field(
        None,
        max_length=32,
        description="Variant of the base model's weight files, such as fp16. Default: files without a variant.",
    )
    pretrained_vae_model_name_or_path: ModelName | None = Field(
        None,
        description="VAE that replaces the base model's, such as madebyollin/sdxl-vae-fp16-fix. Default: the base "
        "model's own.",
        validation_alias=AliasChoices("pretrained_vae_model_name_or_path", "vae"),
    )
    hub_token_secret: SecretName | None = Field(
        None,
        description="Name of the project's secret with a hub token, for gated models. The spec does not contain "
        "the token. Default: no token.",
    )
    base_quantization: BaseQuantization = Field(
        BaseQuantization.NONE,
        description="Format of the frozen UNet's weights in GPU memory. none: that of mixed_precision. int8, fp8: "
        "8 bits, which take half the memory. Products are computed in the precision of mixed_precision.",
    )
    fp8_base: bool = Field(
        False,
        exclude=True,
        description="kohya's spelling of base_quantization fp8. The spec is stored with base_quantization.",
        validation_alias=AliasChoices(*FP8_NAMES),
    )

    @model_validator(mode="before")
    @classmethod
    def _fp8(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or not any(given.get(name) is True for name in FP8_NAMES):
            return given
        return {"base_quantization": BaseQuantization.FP8, **given}
