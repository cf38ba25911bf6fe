"""One picture, with every choice made: what a node needs to draw it, and what a result file records about it."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, GetJsonSchemaHandler, StringConstraints, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from giornata.protocol.generation.schedulers import DEFAULT, SchedulerName
from giornata.protocol.model import Message, ModelName, Sha256

MAX_SIDE_PX = 2048
SIDE_MULTIPLE_PX = 8
MAX_STEPS = 150
MAX_SEED = 2**53 - 1

MAX_PROMPT_CHARS = 20_000

GeneratePrompt = Annotated[str, StringConstraints(max_length=MAX_PROMPT_CHARS)]
Side = Annotated[int, Field(ge=64, le=MAX_SIDE_PX, multiple_of=SIDE_MULTIPLE_PX)]
Weight = Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class ImageFormat(StrEnum):
    """The file format of a result."""

    PNG = "png"
    JPEG = "jpeg"
    WEBP = "webp"


class ModelUse(Message):
    """A model file that a picture is drawn with. With a sha256 the agent has the file; without one the engine loads
    the name from a folder or from the hub, as training does. A text is the name of a model without settings."""

    name: ModelName
    sha256: Sha256 | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_name(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the text to what may be given."""
        made = handler(schema)
        inner = handler.resolve_ref_schema(made)
        either = {"anyOf": [dict(inner), {"type": "string", "minLength": 1, "maxLength": 512}]}
        inner.clear()
        inner.update(either)
        return made


class LoraUse(ModelUse):
    """A LoRA and how strongly it acts. `text_encoder_weight` is `weight` unless it is given."""

    weight: Weight = 1.0
    text_encoder_weight: Weight | None = None


class EmbeddingUse(ModelUse):
    """A textual inversion, and the word of the prompt that stands for it."""

    token: str = Field(min_length=1, max_length=128)


class ControlNetUse(ModelUse):
    """A ControlNet with its control picture. `image` is the picture after `annotator`; None: the picture as it is."""

    image: Sha256
    annotator: str | None = Field(None, max_length=64)
    annotator_params: dict[str, float | int | str | bool] = Field(default_factory=dict, max_length=32)
    weight: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 1.0
    start: Share = 0.0
    end: Share = 1.0


class Refiner(Message):
    """A second model that takes over after this share of the denoising steps."""

    model: ModelUse
    switch_at: Share = 0.8


class HighResolution(Message):
    """A second pass at a larger size, beginning from the first pass's enlarged latents."""

    width: Side
    height: Side
    strength: Annotated[float, Field(gt=0, le=1)] = 0.5
    num_inference_steps: int | None = Field(None, ge=1, le=MAX_STEPS)


class PictureParams(Message):
    """Everything that decides on one picture's pixels. Names are those of diffusers' pipelines.

    `scheduler` is a name of `giornata.protocol.generation.schedulers`. `image` starts an image-to-image picture, and
    `mask` (white is drawn anew) makes it inpainting. `clip_skip` counts as in diffusers. Files are named by sha256.
    """

    model: ModelUse
    revision: str | None = Field(None, max_length=255)
    variant: str | None = Field(None, max_length=64)
    vae: ModelUse | None = None
    prompt: GeneratePrompt
    negative_prompt: GeneratePrompt = ""
    width: Side
    height: Side
    num_inference_steps: int = Field(30, ge=1, le=MAX_STEPS)
    guidance_scale: Annotated[float, Field(ge=0, le=50, allow_inf_nan=False)] = 7.0
    scheduler: SchedulerName = DEFAULT
    seed: int = Field(ge=0, le=MAX_SEED)
    clip_skip: int | None = Field(None, ge=1, le=11)
    loras: tuple[LoraUse, ...] = Field((), max_length=16)
    embeddings: tuple[EmbeddingUse, ...] = Field((), max_length=32)
    controlnets: tuple[ControlNetUse, ...] = Field((), max_length=4)
    image: Sha256 | None = None
    mask: Sha256 | None = None
    strength: Annotated[float, Field(gt=0, le=1)] = 0.75
    refiner: Refiner | None = None
    high_resolution: HighResolution | None = None
    safety_checker: bool = False
    image_format: ImageFormat = ImageFormat.PNG
    quality: int = Field(95, ge=1, le=100)
    metadata: bool = True

    def pixel_steps(self) -> int:
        """Return the work of the picture: pixels times denoising steps, of all passes."""
        steps = self.num_inference_steps
        if self.image is not None:
            steps = max(1, round(steps * self.strength))
        work = self.width * self.height * steps
        if (second := self.high_resolution) is not None:
            second_steps = max(1, round((second.num_inference_steps or self.num_inference_steps) * second.strength))
            work += second.width * second.height * second_steps
        return work

    def files(self) -> dict[str, str]:
        """Return the part that each file of the picture plays, by its sha256: `base`, `vae`, `lora`, `embedding`,
        `controlnet`, `refiner` or `picture`."""
        named: list[tuple[str, str | None]] = [("base", self.model.sha256)]
        named += [("vae", self.vae.sha256)] if self.vae else []
        named += [("lora", each.sha256) for each in self.loras]
        named += [("embedding", each.sha256) for each in self.embeddings]
        named += [("controlnet", each.sha256) for each in self.controlnets]
        named += [("refiner", self.refiner.model.sha256)] if self.refiner else []
        named += [
            ("picture", sha256) for sha256 in (self.image, self.mask, *(each.image for each in self.controlnets))
        ]
        return {sha256: role for role, sha256 in named if sha256 is not None}
