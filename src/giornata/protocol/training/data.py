"""The pictures of a training job: the subject's, those of its class, and those held out."""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field

from giornata.protocol.model import Message, Prompt

CAPTION_EXTENSION = ".txt"


def _side(given: Any) -> Any:
    """Return one number for the two equal ones of kohya's scripts: 1024,1024."""
    sides = given.split(",") if isinstance(given, str) else given
    if not isinstance(sides, list | tuple):
        return given
    if len({str(side).strip() for side in sides}) > 1:
        raise ValueError("one side for a square; pictures keep their own proportions with enable_bucket")
    return str(sides[0]).strip() if sides else given


def with_dot(given: Any) -> Any:
    """Return the file extension with its dot, which the input may omit."""
    return f".{given}" if isinstance(given, str) and given and not given.startswith(".") else given


class DataFields(Message):
    """The pictures and what is said of them."""

    dataset: str = Field(pattern=r"^ds_[0-9a-z]+$", description="Id of the dataset with the subject's pictures.")
    instance_prompt: Prompt | None = Field(
        None,
        description="Caption of every picture that has no caption of its own, such as: a photo of sks dog.",
    )
    shuffle_caption: bool = Field(
        False,
        description="Shuffle the parts of a caption in each step. Steps take longer: text encoders run in each.",
    )
    keep_tokens: int = Field(
        0,
        ge=0,
        le=64,
        description="With shuffle_caption: number of parts at the start of a caption that keep their place.",
    )
    caption_separator: str = Field(
        ",", min_length=1, max_length=8, description="With shuffle_caption: text between the parts of a caption."
    )
    keep_tokens_separator: str | None = Field(
        None,
        min_length=1,
        max_length=8,
        description="Mark in a caption, such as three vertical bars. The parts before the mark stay first, and parts "
        "behind a second mark stay last. A caption without the mark follows keep_tokens. Default: no caption has a "
        "mark.",
    )
    caption_dropout_rate: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Probability that a step trains a subject's picture without its caption. 0: never.",
        validation_alias=AliasChoices("caption_dropout_rate", "proportion_empty_prompts"),
    )
    max_token_length: Literal[75, 150, 225] = Field(
        75,
        description="Maximum number of tokens of a caption or prompt. A text of more than 75 tokens is encoded in "
        "chunks of 75, as in sd-scripts.",
    )
    truncate_captions: bool = Field(
        False,
        description="Truncate captions and prompts after max_token_length tokens. If false, longer ones are refused.",
    )
    resolution: Annotated[int, BeforeValidator(_side)] = Field(
        1024,
        ge=64,
        le=2048,
        multiple_of=8,
        description="Side of the training square, in pixels. Base models of Stable Diffusion 1.5 expect 512.",
    )
    caption_extension: Annotated[str, BeforeValidator(with_dot)] = Field(
        CAPTION_EXTENSION,
        pattern=r"^\.[A-Za-z0-9_-]{1,15}$",
        description="File extension of the caption files beside the pictures, such as .caption. Only `giornata "
        "train` reads these files. A job that is sent over HTTP has its captions in the dataset.",
        validation_alias=AliasChoices("caption_extension", "caption_extention"),
    )
    center_crop: bool = Field(
        False, description="true: crop pictures in the middle. false: the seed decides the place of the crop."
    )
    random_flip: bool = Field(
        False,
        description="Mirror each picture from left to right with a probability of one half.",
        validation_alias=AliasChoices("random_flip", "flip_aug"),
    )
    enable_bucket: bool = Field(
        False,
        description="true: train each picture near its own aspect ratio, with about as many pixels as the training "
        "square. false: crop each to the square.",
    )
    bucket_reso_steps: int = Field(
        64,
        ge=8,
        le=512,
        multiple_of=8,
        description="With enable_bucket: number of pixels of which each side of a bucket is a multiple.",
    )
    min_bucket_reso: int = Field(
        256, ge=32, le=2048, description="With enable_bucket: minimum side of a bucket, in pixels."
    )
    max_bucket_reso: int = Field(
        2048, ge=64, le=4096, description="With enable_bucket: maximum side of a bucket, in pixels."
    )
    bucket_no_upscale: bool = Field(
        False,
        description="With enable_bucket: never enlarge a picture. Its bucket is its own or its scaled-down size, "
        "rounded down to bucket_reso_steps. min_bucket_reso and max_bucket_reso then have no effect.",
    )
    masked_loss: bool = Field(
        False,
        description="Compute the loss only where the mask of a picture is set. The alpha channel of the picture is "
        "its mask.",
        validation_alias=AliasChoices("masked_loss", "alpha_mask"),
    )
    latent_memory_bytes: int = Field(
        2**31,
        ge=0,
        description="Maximum bytes of encoded pictures in main memory. The rest is kept in a file in the job's "
        "folder until the attempt ends. Embeddings of captions have 256 MiB of their own, or as many bytes as this "
        "field if that is less. The value changes no result.",
    )


class PriorFields(Message):
    """Prior preservation: the class that the model must not forget."""

    with_prior_preservation: bool = Field(
        False,
        description="Train on pictures of the class as well, so that the model does not forget what class_prompt "
        "means. prior_prediction is the alternative.",
    )
    class_prompt: Prompt | None = Field(None, description="Prompt of the subject's class, such as: a photo of a dog.")
    class_dataset: str | None = Field(
        None,
        pattern=r"^ds_[0-9a-z]+$",
        description="Id of a dataset with your own class pictures. Default: the base model draws num_class_images "
        "pictures once.",
    )
    num_class_images: int = Field(
        100, ge=1, le=5000, description="Number of class pictures that the base model draws without class_dataset."
    )
    prior_loss_weight: float = Field(
        1.0, ge=0, le=100, description="Weight of the loss on the class; the loss on the subject has weight 1."
    )
    prior_prediction: bool = Field(
        False,
        description="Preserve the class without class pictures: for the subject's pictures under class_prompt, keep "
        "near the base model's own predictions.",
    )


class HeldOutFields(Message):
    """Pictures that are held out of training, and the loss on them."""

    validation_split: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="Pictures that are held out of training, drawn by the seed. A value below 1 is a share of all "
        "pictures; from 1 on it is their number. The metric validation_loss is the loss on them. Such a job shares "
        "no batch. 0: no pictures.",
    )
    validate_every_n_steps: int = Field(
        100,
        ge=1,
        description="With validation_split: number of steps between two measurements of the loss on held-out "
        "pictures. The last step is followed by one, too.",
    )
