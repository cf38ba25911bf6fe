"""Pictures that show what a job has learned."""

import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field

from giornata.protocol.model import Message
from giornata.protocol.training.meaning import meaningless
from giornata.protocol.training.text import Prompt

if TYPE_CHECKING:
    from giornata.protocol.specs import TrainSpec

MOST_PROMPTS = 8
MOST_SHEETS = 100
MOST_COLUMNS = 14
COMMENT = "#"
KOHYAS_OPTION = re.compile(r"\s--(?:[a-z]{1,2}|ss)\s")
FILE_NAME = re.compile(r"\S+\.(?:txt|toml|json)")


def _lines(prompts: Any) -> Any:
    """Text is read as kohya's file of prompts is: one a line, without comments."""
    if not isinstance(prompts, str):
        return prompts
    lines = [line.strip() for line in prompts.splitlines()]
    return [line for line in lines if line and not line.startswith(COMMENT)]


def is_prompt_alone(prompt: str) -> bool:
    """Whether it is neither a file's name nor a line of kohya's with options in it."""
    return bool(prompt) and not FILE_NAME.fullmatch(prompt) and not KOHYAS_OPTION.search(f"{prompt} ")


class SampleFields(Message):
    """Pictures that show what the job has learned."""

    sample_prompts: Annotated[tuple[Prompt, ...], BeforeValidator(_lines)] = Field(
        (),
        max_length=MOST_PROMPTS,
        description="Each is drawn when the job is done, by the base model and with the LoRA, into NAME-samples.png.",
    )
    validation_steps: int | None = Field(
        None,
        ge=1,
        validation_alias=AliasChoices("validation_steps", "sample_every_n_steps"),
        description="Draw them with the LoRA after every so many steps, too, each time into a sheet of its own "
        "(NAME-samples-00000100.png), and at the end into one of all steps (NAME-samples-by-step.png). The steps "
        "wait meanwhile, and the job trains alone.",
    )
    sample_steps: int = Field(25, ge=1, le=50, description="Denoising steps of these pictures.")
    sample_guidance_scale: float | None = Field(
        None, ge=0, le=30, description="Guidance of these pictures; by default what is usual for the base model."
    )


def steps_with_sheets(validation_steps: int | None, max_train_steps: int) -> range:
    """After which pictures are drawn while the job goes on. Not after the last: then all are drawn."""
    return range(0) if validation_steps is None else range(validation_steps, max_train_steps, validation_steps)


def steps_beside_each_other(validation_steps: int | None, max_train_steps: int) -> tuple[int, ...]:
    """Those of these steps that the sheet of all steps has a column for: all, or every so manieth."""
    steps = steps_with_sheets(validation_steps, max_train_steps)
    stride = max(1, -(-len(steps) // MOST_COLUMNS))
    return tuple(steps[stride - 1 :: stride])


def contradictions(spec: "TrainSpec") -> list[tuple[bool, str]]:
    """(whether it is one, what to say of it)."""
    prompts = spec.sample_prompts
    return [
        *meaningless(
            spec,
            "sample_steps",
            "sample_guidance_scale",
            "validation_steps",
            because="without sample_prompts",
            unless=bool(prompts),
        ),
        (
            len(steps_with_sheets(spec.validation_steps, spec.max_train_steps)) > MOST_SHEETS,
            f"validation_steps {spec.validation_steps} are more than {MOST_SHEETS} sheets in {spec.max_train_steps} "
            "steps; draw less often",
        ),
        (
            any(KOHYAS_OPTION.search(f"{prompt} ") for prompt in prompts),
            "sample_prompts are prompts alone, and options such as --n or --s would be drawn as words; use "
            "sample_steps and sample_guidance_scale",
        ),
        (
            any(FILE_NAME.fullmatch(prompt) for prompt in prompts),
            "sample_prompts are the prompts themselves, and no file's name; use a list, or the file's lines",
        ),
    ]
