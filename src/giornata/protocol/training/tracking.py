"""Trackers of experiments."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AliasChoices, BeforeValidator, Field, StringConstraints

from giornata.protocol.model import Message
from giornata.protocol.secrets import SecretName
from giornata.protocol.training.meaning import meaningless

if TYPE_CHECKING:
    from giornata.protocol.specs import TrainSpec

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


def contradictions(spec: "TrainSpec") -> list[tuple[bool, str]]:
    """(whether it is one, what to say of it)."""
    return meaningless(spec, *WANDB_FIELDS, because='without report_to ["wandb"]', unless=WANDB in spec.report_to)
