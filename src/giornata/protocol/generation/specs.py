"""The specs of orders of pictures. `expand` turns an order into pictures, `order_faults` tells what is wrong."""

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, Self

from pydantic import AliasChoices, BeforeValidator, Field, StringConstraints, WithJsonSchema, model_validator

from giornata.domain.generation.prompt_choices import WILDCARD_NAME
from giornata.domain.generation.prompt_loras import without_loras
from giornata.protocol.generation.picture import MAX_PROMPT_CHARS, GeneratePrompt, ModelUse
from giornata.protocol.generation.picture_fields import PictureChanges, PictureFields

MAX_PICTURES = 10_000
GENERATE_KIND = "generate"
WildcardName = Annotated[str, StringConstraints(max_length=64, pattern=rf"^{WILDCARD_NAME.pattern}$")]
Wildcards = Annotated[dict[WildcardName, tuple[GeneratePrompt, ...]], Field(max_length=100)]


def _several(given: Any) -> Any:
    """Return a single prompt as a list of one."""
    return [given] if isinstance(given, str) else given


_TEXT = {"type": "string", "maxLength": MAX_PROMPT_CHARS}
Prompts = Annotated[
    tuple[GeneratePrompt, ...],
    Field(max_length=MAX_PICTURES),
    BeforeValidator(_several),
    WithJsonSchema({"anyOf": [{"type": "array", "items": _TEXT, "maxItems": MAX_PICTURES}, _TEXT]}),
]


class OrderFields(PictureFields):
    """Settings of an order of any kind, besides its prompts."""

    num_images_per_prompt: int = Field(
        1,
        ge=1,
        le=MAX_PICTURES,
        description="Number of pictures of each prompt. They differ in their seeds.",
        validation_alias=AliasChoices("num_images_per_prompt", "n", "repeats"),
    )
    wildcards: Wildcards = Field(
        default_factory=dict,
        description='Lists of texts by name, for __name__ in prompts: {"color": ["red", "blue"]}.',
    )
    prompt_loras: dict[str, ModelUse] = Field(
        default_factory=dict,
        max_length=64,
        description="Models by the NAME with which prompts use them as LoRAs: <lora:NAME:0.8>. Other NAMEs are names "
        "of registered models.",
    )

    def texts(self) -> Iterator[str]:
        """Yield every prompt, and every line of the wildcards' lists."""
        yield self.negative_prompt
        yield from chain.from_iterable(self.wildcards.values())

    def with_prompt_loras(self) -> Self:
        """Write the LoRAs that prompts name into `prompt_loras`, so that they are resolved as other models are."""
        named = {lora.name for text in self.texts() if "<" in text for lora in without_loras(text)[1]}
        for name in sorted(named - set(self.prompt_loras)):
            self.prompt_loras[name] = ModelUse(name=name)
        return self


class GenerateSpec(OrderFields):
    """An order of pictures: of each prompt, and of each entry of `pictures`, `num_images_per_prompt`."""

    prompts: Prompts = Field(
        (),
        description="Prompts of the pictures, in the grammar of prompts. A single text counts as a list of one.",
        validation_alias=AliasChoices("prompts", "prompt"),
    )
    pictures: tuple[PictureChanges, ...] = Field(
        (),
        max_length=MAX_PICTURES,
        description="Pictures with settings of their own: objects with prompt, and any other setting that differs. "
        "They come after the pictures of prompts.",
    )

    def texts(self) -> Iterator[str]:
        """Yield every prompt, and every line of the wildcards' lists."""
        yield from super().texts()
        yield from self.prompts
        for each in self.pictures:
            yield from (each[name] for name in ("prompt", "negative_prompt") if name in each)

    @model_validator(mode="after")
    def _countable(self) -> Self:
        count = (len(self.prompts) + len(self.pictures)) * self.num_images_per_prompt
        if count == 0:
            raise ValueError("prompts and pictures are empty; give at least one prompt")
        if count > MAX_PICTURES:
            raise ValueError(f"num_images_per_prompt makes {count} pictures; at most {MAX_PICTURES} are one order")
        if nameless := [str(number) for number, each in enumerate(self.pictures) if "prompt" not in each]:
            shown = ", ".join(nameless[:5]) + (f" and {len(nameless) - 5} more" if len(nameless) > 5 else "")
            raise ValueError(f"pictures {shown} have no prompt; each entry needs one")
        return self.with_prompt_loras()
