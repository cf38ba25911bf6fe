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
        None,
        max_length=255,
        description="Branch, tag or commit of the base model on the hub. Default: its main branch.",
    )
    variant: str | None = Field(
        None,
        max_length=64,
        description="Variant of the base model's weight files, such as fp16. Default: files without a variant.",
    )
    vae: ModelUse | None = Field(None, description="VAE to draw with. Default: the base model's own.")
    negative_prompt: GeneratePrompt = Field(
        "",
        description="Text of what pictures shall not show, in the grammar of prompts. Guidance leads away from it.",
    )
    width: Side = Field(1024, description="Width of a picture in pixels.")
    height: Side = Field(1024, description="Height of a picture in pixels.")
    num_inference_steps: int = Field(
        30,
        ge=1,
        le=MAX_STEPS,
        description="Number of denoising steps. More take longer and may draw finer.",
        validation_alias=AliasChoices("num_inference_steps", "steps"),
    )
    guidance_scale: Guidance = Field(
        7.0,
        description="Strength of classifier-free guidance: higher values follow the prompt more. 1 or less: none, "
        "and the negative prompt has no effect.",
        validation_alias=AliasChoices("guidance_scale", "cfg_scale"),
    )
    scheduler: SchedulerName = Field(
        DEFAULT,
        description="Sampler and noise schedule, by a name of diffusers, A1111 or ComfyUI, such as DPM++ 2M Karras.",
        validation_alias=AliasChoices("scheduler", "sampler_name"),
    )
    seed: int | None = Field(
        None,
        ge=0,
        le=MAX_SEED,
        description="Seed of the first picture; the seeds of the others count up from it. Default: a random one, "
        "which the order records.",
    )
    clip_skip: int | None = Field(
        None,
        ge=1,
        le=11,
        description="Number of last layers of the text encoders that are left out, as diffusers counts: 1 is 2 in "
        "A1111. Default: none.",
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
    image: Sha256 | None = Field(
        None, description="sha256 of an uploaded picture to start from (image-to-image). Default: start from noise."
    )
    mask: Sha256 | None = Field(
        None,
        description="With image: sha256 of an uploaded mask of its size. White parts are drawn anew (inpainting).",
    )
    strength: Strength = Field(
        0.75, description="With image: share of denoising steps. 1 hardly uses the image; less keeps more of it."
    )
    refiner: Refiner | None = Field(
        None,
        description="Refiner that draws the last steps: an object with model and switch_at, a share of the steps. "
        "Default: none.",
    )
    high_resolution: HighResolution | None = Field(
        None,
        description="Second pass at a larger size: an object with width, height, strength and num_inference_steps. "
        "Default: none.",
    )
    safety_checker: bool = Field(
        False,
        description="Check each picture, and upload none that the checker takes for unsafe. A project may demand it.",
    )
    image_format: ImageFormat = Field(ImageFormat.PNG, description="Format of the result files.")
    quality: int = Field(95, ge=1, le=100, description="Quality of JPEG and WebP files. Higher makes larger files.")
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
