"""The kind and the family of a model file, from the names and shapes of its tensors.

The names are those of the layouts that users share: Stability's (`model.diffusion_model.…`), diffusers', kohya's and
LyCORIS's. Where names do not tell the family, the width of the text that a cross-attention reads does.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.generation.drawable_loras import shape_faults
from giornata.domain.generation.model_header import ModelHeader


class ModelKind(StrEnum):
    """The part that a model file plays. A refiner is an SDXL model that only ends the denoising."""

    BASE = "base"
    REFINER = "refiner"
    VAE = "vae"
    LORA = "lora"
    EMBEDDING = "embedding"
    CONTROLNET = "controlnet"


class ModelFamily(StrEnum):
    """The families of base models, by the names of giornata.diffusion.families."""

    SDXL = "sdxl"
    SD15 = "sd15"


TITLES = {ModelFamily.SDXL: "SDXL", ModelFamily.SD15: "SD 1.5"}
FAMILIES_HERE = " and ".join(TITLES.values())

KNOWN_REPOSITORIES = {
    "stabilityai/stable-diffusion-xl-base-1.0": ModelFamily.SDXL,
    "stable-diffusion-v1-5/stable-diffusion-v1-5": ModelFamily.SD15,
    "runwayml/stable-diffusion-v1-5": ModelFamily.SD15,
    "diffusers/stable-diffusion-xl-1.0-inpainting-0.1": ModelFamily.SDXL,
    "stable-diffusion-v1-5/stable-diffusion-inpainting": ModelFamily.SD15,
    "runwayml/stable-diffusion-inpainting": ModelFamily.SD15,
}
"""Families of base models that the engine loads from the hub, so that LoRAs of another family are refused early."""
INPAINTING_REPOSITORIES = frozenset(name for name in KNOWN_REPOSITORIES if "inpainting" in name)
"""Repositories whose UNet takes 9 channels: without a mask no node draws with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The facts that a header tells. `family` is None where the file has no mark of one, as a VAE has none."""

    kind: ModelKind
    family: ModelFamily | None


Shapes = Mapping[str, tuple[int, ...]]

UNET_INPUT = "model.diffusion_model.input_blocks.0.0.weight"
UNET_LABEL = "model.diffusion_model.label_emb.0.0.weight"
SDXL_SECOND_ENCODER = "conditioner.embedders.1.model.token_embedding.weight"
REFINER_ENCODER = "conditioner.embedders.0.model.token_embedding.weight"
SD15_ENCODER = "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight"
SD2_ENCODER = "cond_stage_model.model.token_embedding.weight"
OTHER_FAMILIES = {
    "double_blocks": "Flux",
    "joint_blocks": "Stable Diffusion 3",
    "joint_transformer_blocks": "Stable Diffusion 3",
    "single_transformer_blocks": "Flux",
}
LORA_PART = re.compile(r"(?:lora_(?:down|up|A|B|mid)\b|hada_w|lokr_w|\.dora_scale$)")
SDXL_KOHYA = ("lora_te1_", "lora_te2_", "text_encoder_2.")
SDXL_KOHYA_UNET = ("lora_unet_input_blocks_", "lora_unet_middle_block_", "lora_unet_output_blocks_")
TEXT_WIDTHS = {768: ModelFamily.SD15, 2048: ModelFamily.SDXL}
SD2_WIDTH = 1024
EMBEDDING_TENSORS = 8
CHECKPOINT_METADATA, CHECKPOINT_PREFIXES = "giornata", ("adapter.", "ema.")
NEEDED_OF_A_BASE = {
    ModelFamily.SDXL: {"second text encoder": SDXL_SECOND_ENCODER, "added conditioning": UNET_LABEL},
    ModelFamily.SD15: {"text encoder": SD15_ENCODER},
}


def facts_of_model(header: ModelHeader, *, where: str) -> ModelFacts:
    """Return kind and family. Raises InvalidInput for a file of another kind or of another family, and for a LoRA
    that no node can draw with."""
    shapes = header.shapes
    if other := _other_family(shapes):
        raise _refused(where, f"is of the family {other}", f"only {FAMILIES_HERE} models can be used")
    for recognize in (_base, _controlnet, _lora, _embedding, _vae):
        found = recognize(header, where)
        if found is not None:
            _refuse_undrawable(found, header, where)
            return found
    hint = "a base model, VAE, LoRA, textual inversion or ControlNet in one .safetensors file is taken"
    if "conv_in.weight" in shapes or any(name.startswith("down_blocks.") for name in shapes):
        hint = "this is one part of a folder in diffusers layout: name the whole model by its hub id"
    raise _refused(where, f"holds tensors of an unknown kind, such as {next(iter(shapes), 'none')}", hint)


def _refuse_undrawable(found: ModelFacts, header: ModelHeader, where: str) -> None:
    faults = list(shape_faults(header.shapes, where=where)) if found.kind is ModelKind.LORA else []
    if faults:
        raise InvalidInput(faults)


def _base(header: ModelHeader, where: str) -> ModelFacts | None:
    shapes = header.shapes
    first = shapes.get(UNET_INPUT)
    if first is None:
        return None
    if SD2_ENCODER in shapes:
        raise _refused(where, "is of the family Stable Diffusion 2", f"only {FAMILIES_HERE} models can be used")
    if len(first) > 1 and first[1] != 4:
        message = f"has a UNet that takes {first[1]} channels"
        raise _refused(where, message, "inpainting works with any base model of 4 channels")
    if REFINER_ENCODER in shapes and SDXL_SECOND_ENCODER not in shapes:
        return ModelFacts(kind=ModelKind.REFINER, family=ModelFamily.SDXL)
    is_sdxl = UNET_LABEL in shapes or SDXL_SECOND_ENCODER in shapes
    family = ModelFamily.SDXL if is_sdxl else ModelFamily.SD15
    lacking = [part for part, name in NEEDED_OF_A_BASE[family].items() if name not in shapes]
    if lacking:
        message = f"holds no {', no '.join(lacking)} of {TITLES[family]}"
        raise _refused(where, message, "a whole checkpoint holds the UNet and the text encoders")
    return ModelFacts(kind=ModelKind.BASE, family=family)


def _controlnet(header: ModelHeader, where: str) -> ModelFacts | None:
    shapes = header.shapes
    marks = ("controlnet_cond_embedding.conv_in.weight", "input_hint_block.0.weight")
    if not any(name.removeprefix("control_model.") in marks for name in shapes):
        return None
    if any(name in shapes for name in ("add_embedding.linear_1.weight", "control_model.label_emb.0.0.weight")):
        return ModelFacts(kind=ModelKind.CONTROLNET, family=ModelFamily.SDXL)
    return ModelFacts(kind=ModelKind.CONTROLNET, family=_by_width(shapes, where) or ModelFamily.SD15)


def _lora(header: ModelHeader, where: str) -> ModelFacts | None:
    shapes = header.shapes
    told = _family_of_checkpoint(header)
    if told is not None:
        return ModelFacts(kind=ModelKind.LORA, family=told)
    if not any(LORA_PART.search(name) for name in shapes):
        return None
    if any(name.startswith((*SDXL_KOHYA, *SDXL_KOHYA_UNET)) for name in shapes):
        return ModelFacts(kind=ModelKind.LORA, family=ModelFamily.SDXL)
    family = _by_width(shapes, where) or _by_metadata(header.metadata)
    if family is None and any(name.startswith("lora_te_") for name in shapes):
        family = ModelFamily.SD15
    return ModelFacts(kind=ModelKind.LORA, family=family)


def _embedding(header: ModelHeader, where: str) -> ModelFacts | None:
    shapes = header.shapes
    if "clip_g" in shapes:
        return ModelFacts(kind=ModelKind.EMBEDDING, family=ModelFamily.SDXL)
    if not shapes or len(shapes) > EMBEDDING_TENSORS or any(not 1 <= len(shape) <= 2 for shape in shapes.values()):
        return None
    widths = {shape[-1] for shape in shapes.values()}
    if widths == {SD2_WIDTH}:
        raise _refused(where, "is of the family Stable Diffusion 2", f"only {FAMILIES_HERE} models can be used")
    if widths != {768} and not {"clip_l", "emb_params"} & shapes.keys():
        return None
    return ModelFacts(kind=ModelKind.EMBEDDING, family=ModelFamily.SD15)


def _vae(header: ModelHeader, _: str) -> ModelFacts | None:
    names = {name.removeprefix("first_stage_model.") for name in header.shapes}
    if not {"encoder.conv_in.weight", "decoder.conv_in.weight"} <= names:
        return None
    return ModelFacts(kind=ModelKind.VAE, family=_by_metadata(header.metadata))


def _family_of_checkpoint(header: ModelHeader) -> ModelFamily | None:
    """Return the family that a checkpoint of a training job names; None for any other file."""
    if not any(name.startswith(CHECKPOINT_PREFIXES) for name in header.shapes):
        return None
    try:
        told = json.loads(header.metadata.get(CHECKPOINT_METADATA, ""))
        return ModelFamily(told.get("family", ModelFamily.SDXL))  # older ones are of SDXL
    except (ValueError, AttributeError):
        return None


def _by_width(shapes: Shapes, where: str) -> ModelFamily | None:
    for name, shape in shapes.items():
        reads_text = "attn2" in name and "to_k" in name and len(shape) >= 2
        if reads_text and not re.search(r"lora_(?:up|B)\b|hada_w\d_a|lokr|alpha|bias", name):
            if shape[1] == SD2_WIDTH:
                raise _refused(
                    where, "is of the family Stable Diffusion 2", f"only {FAMILIES_HERE} models can be used"
                )
            if shape[1] in TEXT_WIDTHS:
                return TEXT_WIDTHS[shape[1]]
    return None


def _by_metadata(metadata: Mapping[str, str]) -> ModelFamily | None:
    told = f"{metadata.get('modelspec.architecture', '')} {metadata.get('ss_base_model_version', '')}".lower()
    if "stable-diffusion-xl" in told or "sdxl" in told:
        return ModelFamily.SDXL
    return ModelFamily.SD15 if "stable-diffusion-v1" in told or "sd_v1" in told else None


def _other_family(shapes: Shapes) -> str | None:
    for name in shapes:
        for mark, family in OTHER_FAMILIES.items():
            if f"{mark}." in name or f"{mark}_" in name:
                return family
    return None


def _refused(where: str, message: str, hint: str) -> InvalidInput:
    return InvalidInput([Fault(where=where, message=message, hint=hint)])
