"""What a training job leaves: checkpoints, files, sample images and curves."""

import re
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field, StringConstraints

from giornata.protocol.model import Message, Prompt
from giornata.protocol.secrets import SecretName
from giornata.protocol.training.file_names import OutputName


class ResultFields(Message):
    """What is kept of it."""

    checkpointing_steps: int | Literal["auto"] = Field(
        "auto",
        description="Steps between checkpoints; auto weighs their cost against the fleet's interruptions.",
        validation_alias=AliasChoices("checkpointing_steps", "save_every_n_steps"),
    )
    checkpoints_keep_latest: int = Field(
        2,
        ge=1,
        le=100,
        description="How many of the newest checkpoints are kept.",
        validation_alias=AliasChoices("checkpoints_keep_latest", "checkpoints_total_limit"),
    )
    checkpoints_keep_every: int | None = Field(None, ge=1, description="Also keep each step that this divides.")
    output_formats: tuple[Literal["kohya", "diffusers"], ...] = Field(
        ("kohya", "diffusers"), min_length=1, description="Whose key names the files have."
    )
    output_name: OutputName | None = Field(
        None,
        description="What the names of the files begin with: my-dog makes my-dog.safetensors. "
        "Default: the job's name.",
    )
    model_card: bool = Field(True, description="Also write README.md, the page that model hubs show.")
    output_dtype: Literal["float32", "float16", "bfloat16"] = Field(
        "float16", description="Of the weights in the files."
    )


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


WANDB = "wandb"
WANDB_FIELDS = ("wandb_project", "wandb_entity", "wandb_run_name", "wandb_api_key_secret")

TrackerName = Literal["tensorboard", "wandb"]
WandbName = Annotated[str, StringConstraints(pattern=r"^[^/\\#?%:\s][^/\\#?%:]*$", max_length=128)]
"""What W&B takes as the name of a project or an entity."""


def _listed(names: object) -> object:
    """diffusers' scripts take one name, or `all`."""
    if names == "all":
        return ["tensorboard", WANDB]
    return [names] if isinstance(names, str) else names


class TrackingFields(Message):
    """Trackers of experiments."""

    report_to: Annotated[tuple[TrackerName, ...], BeforeValidator(_listed)] = Field(
        (),
        description="Trackers for which a file with the curves of the whole job is among the results.",
        validation_alias=AliasChoices("report_to", "log_with"),
    )
    wandb_project: WandbName = Field(
        "giornata",
        description="W&B: the project of the run.",
        validation_alias=AliasChoices("wandb_project", "log_tracker_name", "tracker_project_name"),
    )
    wandb_entity: WandbName | None = Field(
        None, description="W&B: the user or team of the project; by default whose key it is."
    )
    wandb_run_name: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="W&B: the run's name; by default the job's id.",
        validation_alias=AliasChoices("wandb_run_name", "tracker_run_name"),
    )
    wandb_api_key_secret: SecretName | None = Field(
        None, description="W&B: name of the project's secret with the API key; without one the run is a file only."
    )
