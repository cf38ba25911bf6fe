"""The specs of orders of pictures. `expand` turns an order into pictures."""

from pydantic import Field

from giornata.protocol.generation.picture import (
    MAX_SEED,
    MAX_STEPS,
    EmbeddingUse,
    GeneratePrompt,
    ImageFormat,
    LoraUse,
    ModelUse,
    Side,
)
from giornata.protocol.model import Message

MAX_PICTURES = 10_000
GENERATE_KIND = "generate"


class GenerateSpec(Message):
    """An order of pictures: `num_images_per_prompt` of each prompt, with seeds that count up from `seed`."""

    model: ModelUse
    prompts: tuple[GeneratePrompt, ...] = Field(min_length=1, max_length=MAX_PICTURES)
    negative_prompt: GeneratePrompt = ""
    num_images_per_prompt: int = Field(1, ge=1, le=MAX_PICTURES)
    width: Side = 1024
    height: Side = 1024
    num_inference_steps: int = Field(30, ge=1, le=MAX_STEPS)
    guidance_scale: float = Field(7.0, ge=0, le=50, allow_inf_nan=False)
    scheduler: str = Field("euler", max_length=64)
    seed: int | None = Field(None, ge=0, le=MAX_SEED, description="Of the first picture. Without one it is drawn.")
    loras: tuple[LoraUse, ...] = Field((), max_length=16)
    embeddings: tuple[EmbeddingUse, ...] = Field((), max_length=32)
    image_format: ImageFormat = ImageFormat.PNG
    metadata: bool = True
