"""The pictures and what is said of them."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field

from giornata.protocol.model import Message
from giornata.protocol.training.meaning import meaningless
from giornata.protocol.training.text import Prompt

if TYPE_CHECKING:
    from giornata.protocol.specs import TrainSpec

CAPTION_EXTENSION = ".txt"


def _side(given: Any) -> Any:
    """One number for the two equal ones by which kohya's scripts say it: 1024,1024."""
    sides = given.split(",") if isinstance(given, str) else given
    if not isinstance(sides, list | tuple):
        return given
    if len({str(side).strip() for side in sides}) > 1:
        raise ValueError("one side for a square; pictures keep their own proportions with enable_bucket")
    return str(sides[0]).strip() if sides else given


def with_dot(given: Any) -> Any:
    """With its dot, which may be left out."""
    return f".{given}" if isinstance(given, str) and given and not given.startswith(".") else given


class DataFields(Message):
    """The pictures and what is said of them."""

    dataset: str = Field(pattern=r"^ds_[0-9a-z]+$", description="Id of the dataset with the subject's pictures.")
    instance_prompt: Prompt | None = Field(None, description="Caption of every picture that has none of its own.")
    shuffle_caption: bool = Field(
        False, description="Put the parts of a caption into another order each time. Text encoders run at every step."
    )
    keep_tokens: int = Field(0, ge=0, le=64, description="First parts of a caption that stay where they are.")
    keep_tokens_separator: str | None = Field(
        None,
        min_length=1,
        max_length=8,
        description="Mark in a caption, such as three vertical bars. The parts before the mark stay first, and parts "
        "behind a second mark stay last. A caption without the mark follows keep_tokens. Default: no caption has a "
        "mark.",
    )
    caption_separator: str = Field(",", min_length=1, max_length=8, description="What stands between the parts.")
    caption_dropout_rate: float = Field(
        0.0,
        ge=0,
        le=1,
        description="How often a subject's picture goes without its caption.",
        validation_alias=AliasChoices("caption_dropout_rate", "proportion_empty_prompts"),
    )
    max_token_length: Literal[75, 150, 225] = Field(
        75,
        description="Most tokens of a caption or prompt. Beyond 75 each 75 are read apart and joined, as kohya does.",
    )
    truncate_captions: bool = Field(
        False,
        description="Cut captions and prompts after max_token_length tokens; if false, longer ones are refused.",
    )
    resolution: Annotated[int, BeforeValidator(_side)] = Field(
        1024, ge=64, le=2048, multiple_of=8, description="Side of the square, in pixels."
    )
    caption_extension: Annotated[str, BeforeValidator(with_dot)] = Field(
        CAPTION_EXTENSION,
        pattern=r"^\.[A-Za-z0-9_-]{1,15}$",
        description="Ending of the caption files beside pictures, such as .caption. `giornata train` reads these "
        "files. A job sent over HTTP has its captions in the dataset, and the server reads no such file.",
        validation_alias=AliasChoices("caption_extension", "caption_extention"),
    )
    center_crop: bool = Field(False, description="Crop in the middle; otherwise where the seed says.")
    random_flip: bool = Field(
        False,
        description="Mirror a picture half of the time.",
        validation_alias=AliasChoices("random_flip", "flip_aug"),
    )
    enable_bucket: bool = Field(
        False, description="Train each picture near its own proportions, in about as many pixels as the square has."
    )
    bucket_reso_steps: int = Field(
        64, ge=8, le=512, multiple_of=8, description="Sides of the buckets are multiples of this, in pixels."
    )
    min_bucket_reso: int = Field(256, ge=32, le=2048, description="Least side of a bucket, in pixels.")
    max_bucket_reso: int = Field(2048, ge=64, le=4096, description="Greatest side of a bucket, in pixels.")
    bucket_no_upscale: bool = Field(
        False,
        description="With enable_bucket: enlarge no picture. Its bucket is its own size, or what it is scaled down "
        "to, rounded down to bucket_reso_steps; min_bucket_reso and max_bucket_reso do not count then.",
    )
    masked_loss: bool = Field(
        False,
        description="Learn only what the mask of a picture shows; its alpha channel is the mask.",
        validation_alias=AliasChoices("masked_loss", "alpha_mask"),
    )
    latent_memory_bytes: int = Field(
        2**31,
        ge=0,
        description="Bytes of encoded pictures that are kept in memory. Those beyond lie in a file of the job's "
        "folder, which is removed at the end of the attempt. Embeddings of captions have 256 MiB of their own, or as "
        "many bytes as this where it is less. Changes no result.",
    )


def contradictions(spec: "TrainSpec") -> list[tuple[bool, str]]:
    """(whether it is one, what to say of it)."""
    return [
        *meaningless(
            spec,
            "keep_tokens",
            "keep_tokens_separator",
            "caption_separator",
            because="without shuffle_caption",
            unless=spec.shuffle_caption,
        ),
        *_bucket_contradictions(spec),
    ]


def _bucket_contradictions(spec: "TrainSpec") -> list[tuple[bool, str]]:
    if not spec.enable_bucket:
        names = ("bucket_reso_steps", "min_bucket_reso", "max_bucket_reso", "bucket_no_upscale")
        return meaningless(spec, *names, because="without enable_bucket", unless=False)
    steps = spec.bucket_reso_steps
    if spec.bucket_no_upscale:
        return [(spec.resolution % steps != 0, "resolution is not a multiple of bucket_reso_steps")]
    sides = ("resolution", "min_bucket_reso", "max_bucket_reso")
    odd = [(getattr(spec, name) % steps != 0, f"{name} is not a multiple of bucket_reso_steps") for name in sides]
    return [
        *odd,
        (spec.min_bucket_reso > spec.resolution, "min_bucket_reso is above resolution"),
        (spec.max_bucket_reso < spec.resolution, "max_bucket_reso is below resolution"),
    ]
