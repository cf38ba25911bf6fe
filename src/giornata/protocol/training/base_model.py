"""The model that is fine-tuned."""

from typing import TYPE_CHECKING

from pydantic import AliasChoices, Field

from giornata.protocol.model import Message, Sha256
from giornata.protocol.secrets import SecretName
from giornata.protocol.training.model_names import hub_file, is_single_file, is_url
from giornata.protocol.training.text import ModelName

if TYPE_CHECKING:
    from giornata.protocol.specs import TrainSpec


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
        None, description="Another VAE, such as madebyollin/sdxl-vae-fp16-fix."
    )
    hub_token_secret: SecretName | None = Field(
        None, description="Name of the project's secret that opens a gated model; its value is not in the spec."
    )


def contradictions(spec: "TrainSpec") -> list[tuple[bool, str]]:
    """(whether it is one, what to say of it)."""
    name, vae = spec.pretrained_model_name_or_path, spec.pretrained_vae_model_name_or_path
    single, named = is_single_file(name), hub_file(name)
    return [
        (
            is_url(name) and named is None,
            "pretrained_model_name_or_path is a URL, and no https://huggingface.co/OWNER/NAME/resolve/REVISION/"
            "FILE.safetensors; put the file on the hub or on the nodes",
        ),
        (
            spec.pretrained_model_sha256 is not None and not single,
            "pretrained_model_sha256 is that of a single .safetensors file, and the model is none",
        ),
        (spec.variant is not None and single, "variant means nothing with a single .safetensors file"),
        (
            spec.revision is not None and named is not None and named.revision is not None,
            "revision is in the model's URL already; leave it out",
        ),
        (
            vae is not None and (is_url(vae) or is_single_file(vae)),
            "pretrained_vae_model_name_or_path is a hub id or a folder with a VAE in diffusers layout",
        ),
    ]
