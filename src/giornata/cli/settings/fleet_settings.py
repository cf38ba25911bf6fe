"""The tables `[fleets.NAME]` of the settings, which `docs/reference/settings.md` lists."""

from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StringConstraints, ValidationInfo, field_validator

from giornata.domain.billing.money import MICRO_USD
from giornata.domain.fleets.fleet_plan import ScalingPolicy
from giornata.domain.fleets.scaling_windows import parse_window
from giornata.domain.generation.picture import NODE_KINDS
from giornata.domain.machines.node_checks import NodeThresholds

FleetName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,62}$")]
DEFAULT = ScalingPolicy()


class _Table(BaseModel):
    """A table of the settings file; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ScalingTable(_Table):
    """The table `[fleets.NAME.scaling]` of the settings file."""

    min_nodes: int = Field(
        DEFAULT.min_nodes, ge=0, le=10_000, description="Minimum number of nodes, even with an empty queue."
    )
    max_nodes: int = Field(DEFAULT.max_nodes, ge=0, le=10_000, description="Maximum number of nodes.")
    warm_spares: int = Field(
        DEFAULT.warm_spares,
        ge=0,
        le=1000,
        description="Number of idle nodes that are kept ready while any job is queued or running.",
    )
    idle_timeout_s: float = Field(
        DEFAULT.idle_timeout_s,
        validation_alias=AliasChoices("idle_timeout_s", "idle_to_zero_s"),
        ge=0,
        description="Seconds without need after which an idle node, or a node that is still starting, is stopped.",
    )
    surplus_idle_s: float = Field(
        DEFAULT.surplus_idle_s,
        ge=0,
        description="Seconds after which all idle nodes but one are stopped while no job is queued. The last one is "
        "kept for idle_timeout_s.",
    )
    max_scale_up: int = Field(
        DEFAULT.max_scale_up,
        validation_alias=AliasChoices("max_scale_up", "most_up"),
        ge=1,
        description="Maximum number of nodes that one scaling step adds.",
    )
    max_scale_down: int = Field(
        DEFAULT.max_scale_down,
        validation_alias=AliasChoices("max_scale_down", "most_down"),
        ge=1,
        description="Maximum number of nodes that one scaling step removes.",
    )
    cooldown_s: float = Field(
        DEFAULT.cooldown_s,
        validation_alias=AliasChoices("cooldown_s", "pause_after_change_s"),
        ge=0,
        description="Minimum seconds between two scaling steps. More seconds make the number of nodes steadier.",
    )
    max_price_usd_per_hour: float | None = Field(
        None,
        ge=0,
        description="Maximum price of a node in US dollars per hour. No node is added while the price is higher. "
        "Default: no maximum.",
    )
    startup_timeout_s: float = Field(
        DEFAULT.startup_timeout_s,
        validation_alias=AliasChoices("startup_timeout_s", "start_within_s"),
        ge=1,
        description="Seconds after which an instance that is not billed yet and has no node is replaced.",
    )
    billed_startup_timeout_s: float = Field(
        DEFAULT.billed_startup_timeout_s,
        validation_alias=AliasChoices("billed_startup_timeout_s", "start_billed_within_s"),
        ge=1,
        description="Seconds after which a running, billed instance without a node is replaced.",
    )
    expected_startup_s: float = Field(
        DEFAULT.expected_startup_s,
        validation_alias=AliasChoices("expected_startup_s", "usual_start_s"),
        ge=0,
        description="Expected seconds from the request of a node to its first job. With these seconds the server "
        "picks a fleet for a job with a deadline.",
    )
    drain_timeout_s: float = Field(
        DEFAULT.drain_timeout_s,
        validation_alias=AliasChoices("drain_timeout_s", "drain_within_s"),
        ge=1,
        description="Seconds that a busy node has to save a checkpoint and give its job back before its instance is "
        "stopped.",
    )
    schedules: tuple[str, ...] = Field(
        (),
        validation_alias=AliasChoices("schedules", "windows"),
        description="Hours of the week with other numbers of nodes: `mon-fri 08:00-20:00 Europe/Berlin min=2 max=9`. "
        "Default: none.",
    )

    @field_validator("max_nodes")
    @classmethod
    def _at_least_the_fewest(cls, most: int, info: ValidationInfo) -> int:
        fewest = info.data.get("min_nodes", 0)
        if most < fewest:
            raise ValueError(f"is less than min_nodes, {fewest}")
        return most

    @field_validator("schedules")
    @classmethod
    def _are_windows(cls, schedules: tuple[str, ...]) -> tuple[str, ...]:
        for schedule in schedules:
            parse_window(schedule)
        return schedules

    def policy(self) -> ScalingPolicy:
        """The policy that the scaling rules take."""
        price = self.max_price_usd_per_hour
        same = self.model_dump(exclude={"max_price_usd_per_hour", "schedules"})
        return ScalingPolicy(
            **same,
            max_price_micro_usd_per_hour=None if price is None else round(price * MICRO_USD),
            windows=tuple(parse_window(each) for each in self.schedules),
        )


class ChecksTable(_Table):
    """`[fleets.NAME.checks]`: what a node has to find out about itself before it gets work."""

    min_driver: str | None = Field(
        None,
        pattern=r"^\d+(\.\d+)*$",
        description="Minimum version of the graphics driver, such as 550.54. "
        "A node with an older one gets no work. Default: not checked.",
    )
    min_vram_bytes: int | None = Field(
        None,
        ge=0,
        description="Minimum free GPU memory, in bytes. A node with less gets no work. Default: not checked.",
    )
    min_disk_bytes: int | None = Field(
        None,
        ge=0,
        description="Minimum free disk space in the work directory, in bytes. "
        "A node with less gets no work. Default: not checked.",
    )
    min_download_bytes_per_s: float | None = Field(
        None,
        gt=0,
        description="Minimum speed of a download from storage, in bytes per second. "
        "A slower node gets no work. Default: not checked.",
    )
    min_upload_bytes_per_s: float | None = Field(
        None,
        gt=0,
        description="Minimum speed of an upload to storage, in bytes per second. "
        "A slower node gets no work. Default: not checked.",
    )
    max_clock_skew_s: float | None = Field(
        None,
        gt=0,
        description="Maximum difference between the node's clock and the server's, in seconds. "
        "A node beyond it gets no work. Default: not checked.",
    )

    def thresholds(self) -> NodeThresholds:
        """The thresholds that the node checks take."""
        return NodeThresholds(**self.model_dump())


class FleetTable(_Table):
    """The table `[fleets.NAME]` of the settings file."""

    driver: str = Field(description="Driver of the fleet: local, static, salad, kubernetes or skypilot.")
    kinds: tuple[str, ...] = Field(
        NODE_KINDS,
        min_length=1,
        description="Kinds of job that the fleet's nodes take: train, generate, preprocess, pretrain, or your own.",
    )
    places: int = Field(
        1, ge=1, le=64, description="Number of jobs that one node may train in one batch. 1: one job at a time."
    )
    vram_bytes: int | None = Field(
        None,
        ge=0,
        description="GPU memory of one node in bytes. The fleet starts no nodes for jobs that need more. Default: "
        "it starts nodes for every job.",
    )
    audit_share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Share of the training stretches of this fleet that other machines run again: 0.01 is one in a "
        "hundred. Default: the setting audit_share for SaladCloud, whose machines are strangers', and 0 for others.",
    )
    scaling: ScalingTable = Field(
        default_factory=ScalingTable,
        description="Table of limits and times of scaling: fleets.NAME.scaling. Default: its defaults.",
    )
    checks: ChecksTable = Field(
        default_factory=ChecksTable,
        description="Table of requirements that a node must meet before it gets jobs: fleets.NAME.checks. Default: "
        "none.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Table of the driver's own options: fleets.NAME.options. The page of each provider lists them.",
    )


TABLES: dict[str, type[_Table]] = {
    "fleets.NAME": FleetTable,
    "fleets.NAME.scaling": ScalingTable,
    "fleets.NAME.checks": ChecksTable,
}
