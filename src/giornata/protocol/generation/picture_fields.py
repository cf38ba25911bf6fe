"""The settings that the pictures of an order have in common, and those that one picture may have of its own."""

from typing import Annotated

from pydantic import AliasChoices, ConfigDict, Field
from typing_extensions import TypedDict

from giornata.protocol.generation.picture import (
    MAX_SEED,
    MAX_STEPS,
    ControlNetUse,
    EmbeddingUse,
    GeneratePrompt,
    HighResolution,
    ImageFormat,
    LoraUse,
    ModelUse,
    Refiner,
    Side,
)
from giornata.protocol.generation.schedulers import DEFAULT, SchedulerName
from giornata.protocol.model import Message, Sha256

MAX_LORAS = 16
MAX_EMBEDDINGS = 32
MAX_CONTROLNETS = 4
Guidance = Annotated[float, Field(ge=0, le=50, allow_inf_nan=False)]
Strength = Annotated[float, Field(gt=0, le=1)]
Loras = Annotated[tuple[LoraUse, ...], Field(max_length=MAX_LORAS)]
Embeddings = Annotated[tuple[EmbeddingUse, ...], Field(max_length=MAX_EMBEDDINGS)]
ControlNets = Annotated[tuple[ControlNetUse, ...], Field(max_length=MAX_CONTROLNETS)]


class PictureFields(Message):
    """Settings of all pictures of an order. Names are those of diffusers' pipelines."""

    model: ModelUse = Field(
        description="Base model, SDXL or Stable Diffusion 1.5: a registered name, a hub id, or an object with name "
        "and sha256."
    )
    revision: str | None = Field(
        None, max_length=255, description="Branch, tag or commit of the base model on the hub."
    )
    variant: str | None = Field(None, max_length=64, description="Variant of the weight files, such as fp16.")
    vae: ModelUse | None = Field(None, description="VAE that replaces the base model's.")
    negative_prompt: GeneratePrompt = Field(
        "", description="Text that guidance leads away from, in the grammar of prompts."
    )
    width: Side = Field(1024, description="Width of a picture in pixels.")
    height: Side = Field(1024, description="Height of a picture in pixels.")
    num_inference_steps: int = Field(
        30,
        ge=1,
        le=MAX_STEPS,
        description="Number of denoising steps.",
        validation_alias=AliasChoices("num_inference_steps", "steps"),
    )
    guidance_scale: Guidance = Field(
        7.0,
        description="Strength of classifier-free guidance. 1 or less: none, and the negative prompt has no effect.",
        validation_alias=AliasChoices("guidance_scale", "cfg_scale"),
    )
    scheduler: SchedulerName = Field(
        DEFAULT,
        description="Scheduler, in any spelling of the table of schedulers.",
        validation_alias=AliasChoices("scheduler", "sampler_name"),
    )
    seed: int | None = Field(
        None,
        ge=0,
        le=MAX_SEED,
        description="Seed of the first picture; the seeds of the others count up from it. Default: drawn.",
    )
    clip_skip: int | None = Field(
        None,
        ge=1,
        le=11,
        description="Number of last layers of the text encoders that are left out. diffusers counts alike; 1 here is "
        "2 in A1111.",
    )
    loras: Loras = Field(
        (),
        description="LoRAs: a name, a job that trained one (job_…, job_…@500), or an object with name, weight and "
        "text_encoder_weight.",
    )
    embeddings: Embeddings = Field(
        (), description="Textual inversions: objects with name and token, the word that stands for it in prompts."
    )
    controlnets: ControlNets = Field(
        (),
        description="ControlNets: objects with name, image (sha256 of an upload), weight, start and end (shares of "
        "the steps), annotator and annotator_params.",
    )
    image: Sha256 | None = Field(None, description="sha256 of an uploaded picture to start from (image-to-image).")
    mask: Sha256 | None = Field(
        None, description="sha256 of an uploaded mask of the image's size. White is drawn anew (inpainting)."
    )
    strength: Strength = Field(0.75, description="Share of the denoising steps that a picture with image has.")
    refiner: Refiner | None = Field(
        None, description="Model that takes over after a share of the steps: an object with model and switch_at."
    )
    high_resolution: HighResolution | None = Field(
        None,
        description="Second pass at a larger size: an object with width, height, strength and num_inference_steps.",
    )
    safety_checker: bool = Field(
        False, description="Check each picture; one that is blocked is not uploaded. A project may demand it."
    )
    image_format: ImageFormat = Field(ImageFormat.PNG, description="Format of the result files.")
    quality: int = Field(95, ge=1, le=100, description="Quality of JPEG and WebP files.")
    metadata: bool = Field(
        True, description="Write the settings into each file: A1111's parameters, a ComfyUI workflow, and our JSON."
    )


class PictureChanges(TypedDict, total=False):
    """One picture of an order: its prompt, and the settings that differ from the order's."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    prompt: GeneratePrompt
    negative_prompt: GeneratePrompt
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]
    model: ModelUse
    revision: Annotated[str | None, Field(max_length=255)]
    variant: Annotated[str | None, Field(max_length=64)]
    vae: ModelUse | None
    width: Side
    height: Side
    num_inference_steps: Annotated[int, Field(ge=1, le=MAX_STEPS)]
    guidance_scale: Guidance
    scheduler: SchedulerName
    clip_skip: Annotated[int | None, Field(ge=1, le=11)]
    loras: Loras
    embeddings: Embeddings
    controlnets: ControlNets
    image: Sha256 | None
    mask: Sha256 | None
    strength: Strength
    refiner: Refiner | None
    high_resolution: HighResolution | None
    safety_checker: bool
    image_format: ImageFormat
    quality: Annotated[int, Field(ge=1, le=100)]
    metadata: bool
