"""The results of a training job: checkpoints, files, sample images and curves."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field, StringConstraints

from giornata.protocol.model import Message, Prompt
from giornata.protocol.project.secrets import SecretName
from giornata.protocol.training.file_names import OutputName


class ResultFields(Message):
    """Checkpoints and exported files of a training job."""

    checkpointing_steps: int | Literal["auto"] = Field(
        "auto",
        description="Number of steps between checkpoints. auto: balances the cost of checkpoints against work lost "
        "by interruptions.",
        validation_alias=AliasChoices("checkpointing_steps", "save_every_n_steps"),
    )
    checkpoints_keep_latest: int = Field(
        2,
        ge=1,
        le=100,
        description="Number of latest checkpoints that are kept. Older ones are deleted.",
        validation_alias=AliasChoices("checkpoints_keep_latest", "checkpoints_total_limit"),
    )
    checkpoints_keep_every: int | None = Field(
        None, ge=1, description="Also keep the checkpoints of steps that are multiples of this number. Default: none."
    )
    output_formats: tuple[Literal["kohya", "diffusers"], ...] = Field(
        ("kohya", "diffusers"),
        min_length=1,
        description="Key names of the exported files: kohya, diffusers, or both. The files are always safetensors.",
    )
    output_name: OutputName | None = Field(
        None,
        description="Start of the names of the exported files: my-dog makes my-dog.safetensors. Default: the job's "
        "name.",
    )
    model_card: bool = Field(True, description="Also write README.md, the model card that hubs show.")
    output_dtype: Literal["float32", "float16", "bfloat16"] = Field(
        "float16", description="Data type of the weights in the exported files. float32 doubles their size."
    )


FLEET = "fleet"
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
    """Return True when the prompt is neither a file's name nor a line in kohya's format with options."""
    return bool(prompt) and not FILE_NAME.fullmatch(prompt) and not KOHYAS_OPTION.search(f"{prompt} ")


class SampleFields(Message):
    """Pictures that show what the job has learned."""

    sample_prompts: Annotated[tuple[Prompt, ...], BeforeValidator(_lines)] = Field(
        (),
        max_length=MOST_PROMPTS,
        description="Prompts of sample images. When the job is done, each is drawn by the base model and with the "
        "LoRA, into NAME-samples.png. Default: no samples.",
    )
    validation_steps: int | None = Field(
        None,
        ge=1,
        validation_alias=AliasChoices("validation_steps", "sample_every_n_steps"),
        description="Number of steps between sheets of sample images, each in a file of its own "
        "(NAME-samples-00000100.png). At the end one file has the samples of all steps (NAME-samples-by-step.png). "
        "Training waits meanwhile, and the job shares no batch. With validation_by fleet other nodes draw. Default: "
        "samples at the end only.",
    )
    validation_by: Literal["process", "fleet"] = Field(
        "process",
        description="Drawer of the sample images of validation_steps. process: the training process, which waits "
        "meanwhile. fleet: another node, from a checkpoint of that step, while training goes on. With fleet there is "
        "no file of all steps. The training process draws images that no node has drawn when the next step is due.",
    )
    sample_steps: int = Field(
        25, ge=1, le=50, description="Number of denoising steps of a sample image. More take longer."
    )
    sample_guidance_scale: float | None = Field(
        None,
        ge=0,
        le=30,
        description="Guidance scale of the sample images. Default: the usual scale of the base model.",
    )


def steps_with_sheets(validation_steps: int | None, max_train_steps: int) -> range:
    """After which pictures are drawn while the job goes on. Not after the last: then all are drawn."""
    return range(0) if validation_steps is None else range(validation_steps, max_train_steps, validation_steps)


def is_drawn_by_fleet(spec: Mapping[str, Any], step: int) -> bool:
    """Return True when another node draws the sample images of this step of a training job, from its checkpoint."""
    if spec.get("validation_by") != FLEET:
        return False
    return step in steps_with_sheets(spec.get("validation_steps"), spec["max_train_steps"])


def steps_beside_each_other(validation_steps: int | None, max_train_steps: int) -> tuple[int, ...]:
    """Return the steps that get a column in the sheet of all steps: all, or every n-th."""
    steps = steps_with_sheets(validation_steps, max_train_steps)
    stride = max(1, -(-len(steps) // MOST_COLUMNS))
    return tuple(steps[stride - 1 :: stride])


WANDB = "wandb"
WANDB_FIELDS = ("wandb_project", "wandb_entity", "wandb_run_name", "wandb_api_key_secret")

TrackerName = Literal["tensorboard", "wandb"]
WandbName = Annotated[str, StringConstraints(pattern=r"^[^/\\#?%:\s][^/\\#?%:]*$", max_length=128)]
"""A name that W&B accepts for a project or an entity."""


def _listed(names: object) -> object:
    """diffusers' scripts take one name, or `all`."""
    if names == "all":
        return ["tensorboard", WANDB]
    return [names] if isinstance(names, str) else names


class TrackingFields(Message):
    """The fields that choose trackers of experiments."""

    report_to: Annotated[tuple[TrackerName, ...], BeforeValidator(_listed)] = Field(
        (),
        description="Trackers that get the curves: tensorboard, wandb. Their files are among the results. Default: "
        "none.",
        validation_alias=AliasChoices("report_to", "log_with"),
    )
    wandb_project: WandbName = Field(
        "giornata",
        description="W&B: project that the run belongs to.",
        validation_alias=AliasChoices("wandb_project", "log_tracker_name", "tracker_project_name"),
    )
    wandb_entity: WandbName | None = Field(
        None, description="W&B: user or team that owns the project. Default: the owner of the API key."
    )
    wandb_run_name: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="W&B: name of the run. Default: the id of the job.",
        validation_alias=AliasChoices("wandb_run_name", "tracker_run_name"),
    )
    wandb_api_key_secret: SecretName | None = Field(
        None,
        description="W&B: name of the secret of your Giornata project with the API key. Default: nothing is sent, "
        "and the run is a file among the results.",
    )
