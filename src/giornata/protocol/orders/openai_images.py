"""`POST /v1/images/generations` in the shape that OpenAI's API has, so that programs for that API need no change."""

from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field

from giornata.protocol.generation.picture import ImageFormat
from giornata.protocol.model import Message, Reply

MOST_IMAGES = 10
SIZE_PATTERN = r"^(auto|[0-9]{1,5}x[0-9]{1,5})$"


class ResponseFormat(StrEnum):
    """The place of the pictures: behind URLs, or in the reply itself."""

    URL = "url"
    B64_JSON = "b64_json"


class Quality(StrEnum):
    """Number of denoising steps of a picture, in OpenAI's words. The words of older models are among them."""

    AUTO = "auto"
    STANDARD = "standard"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    HD = "hd"


STEPS_OF_QUALITY = MappingProxyType({Quality.LOW: 20, Quality.MEDIUM: 30, Quality.HIGH: 50, Quality.HD: 50})
"""Denoising steps; a quality that is not named has as many as the spec's default."""


class ImageGenerationRequest(Message):
    """A request in OpenAI's shape. Fields of a `generate` spec that OpenAI's API does not have may stand beside.

    `model` is a base model. `user` and `safety_identifier` become the label `user`. Other fields of OpenAI's API that
    have no equivalent are refused unless they ask for nothing.
    """

    model_config = Message.model_config | {"extra": "allow"}

    prompt: str
    model: str = Field(min_length=1, max_length=512, description="The base model.")
    n: int | None = Field(None, ge=1, le=MOST_IMAGES, description="Number of pictures.")
    size: str | None = Field(None, pattern=SIZE_PATTERN, description="`WIDTHxHEIGHT`, or `auto`.")
    response_format: ResponseFormat | None = Field(
        None, description="Place of the pictures in the reply. Default: `url`."
    )
    quality: Quality | None = Field(None, description="low is 20 steps, medium 30, high and hd 50.")
    output_format: ImageFormat | None = None
    output_compression: int | None = Field(None, ge=0, le=100, description="Quality of a JPEG or WebP file.")
    moderation: Literal["low", "auto"] | None = Field(None, description="auto: with the safety checker.")
    background: Literal["opaque", "auto"] | None = None
    style: None = Field(None, description="Not supported: describe the style in the prompt.")
    stream: Literal[False] | None = Field(None, description="Not supported: stream the events of the job instead.")
    partial_images: Literal[0] | None = None
    user: str | None = Field(None, max_length=256)
    safety_identifier: str | None = Field(None, max_length=256)

    def fields(self) -> dict[str, Any]:
        """Return the fields of the `generate` spec that is asked for."""
        found = dict(self.model_extra or {}) | {"prompt": self.prompt, "model": self.model}
        found["n"] = self.n or 1
        if self.size not in {None, "auto"}:
            width, _, height = str(self.size).partition("x")
            found |= {"width": int(width), "height": int(height)}
        if self.quality is not None and self.quality in STEPS_OF_QUALITY:
            found.setdefault("num_inference_steps", STEPS_OF_QUALITY[self.quality])
        if self.output_format is not None:
            found["image_format"] = str(self.output_format)
        if self.output_compression is not None:
            found["quality"] = max(1, self.output_compression)
        if self.moderation == "auto":
            found["safety_checker"] = True
        return found

    def labels(self) -> dict[str, str]:
        """Return the labels of the order."""
        user = self.safety_identifier or self.user
        return {"user": user} if user else {}


PARAMETERS = MappingProxyType(
    {
        "prompts": "prompt",
        "num_images_per_prompt": "n",
        "width": "size",
        "height": "size",
        "image_format": "output_format",
        "quality": "output_compression",
        "safety_checker": "moderation",
        "labels": "user",
    }
)
"""Fields of the spec, and the parameter of the request that each came from."""
FIELDS_OF = MappingProxyType(
    {
        "n": ("num_images_per_prompt",),
        "size": ("width", "height"),
        "quality": ("num_inference_steps",),
        "output_format": ("image_format",),
        "output_compression": ("quality",),
        "moderation": ("safety_checker",),
    }
)
"""Parameters, and the fields of the spec that are not known while the parameter is not."""


class ImageData(Reply):
    """One picture of a reply in OpenAI's shape."""

    url: str | None = None
    b64_json: str | None = None
    revised_prompt: str | None = Field(None, description="The prompt as drawn, where it is another than was given.")


class ImageGenerationReply(Reply):
    """The reply in OpenAI's shape. `created` is in seconds since 1970."""

    created: int
    data: tuple[ImageData, ...]
    output_format: ImageFormat | None = None
    size: str | None = None


class ImageError(Reply):
    """An error in OpenAI's shape. `param` is the first parameter that is wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ImageErrorReply(Reply):
    """The body of an error in OpenAI's shape."""

    error: ImageError
