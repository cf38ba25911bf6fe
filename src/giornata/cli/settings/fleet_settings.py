"""The tables `[fleets.NAME]` of the settings. `docs/settings.md` lists them, and a test compares the two."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationInfo, field_validator

from giornata.domain.fleet_plan import ScalingPolicy
from giornata.domain.money import MICRO_USD
from giornata.domain.node_checks import NodeThresholds
from giornata.domain.scaling_windows import parse_window

FleetName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,62}$")]
DEFAULT = ScalingPolicy()


class _Table(BaseModel):
    """Nothing unknown is passed over."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ScalingTable(_Table):
    """`[fleets.NAME.scaling]`."""

    min_nodes: int = Field(DEFAULT.min_nodes, ge=0, le=10_000, description="Fewest nodes, whether there is work.")
    max_nodes: int = Field(DEFAULT.max_nodes, ge=0, le=10_000, description="Most nodes.")
    warm_spares: int = Field(
        DEFAULT.warm_spares, ge=0, le=1000, description="Nodes more than the work needs, while there is any."
    )
    idle_to_zero_s: float = Field(
        DEFAULT.idle_to_zero_s,
        ge=0,
        description="Seconds that a node without work is kept, one that has not started included.",
    )
    surplus_idle_s: float = Field(
        DEFAULT.surplus_idle_s,
        ge=0,
        description="Seconds that nodes without work are kept while no job waits. One of them stays idle_to_zero_s.",
    )
    most_up: int = Field(DEFAULT.most_up, ge=1, description="Most nodes more in one step.")
    most_down: int = Field(DEFAULT.most_down, ge=1, description="Most nodes fewer in one step.")
    pause_after_change_s: float = Field(
        DEFAULT.pause_after_change_s, ge=0, description="Time between two changes of the number."
    )
    max_price_usd_per_hour: float | None = Field(
        None, ge=0, description="No further node is asked for while one costs more. Default: whatever it costs."
    )
    start_within_s: float = Field(
        DEFAULT.start_within_s,
        ge=1,
        description="Seconds until an instance that is not billed yet and has no node is replaced.",
    )
    start_billed_within_s: float = Field(
        DEFAULT.start_billed_within_s,
        ge=1,
        description="Seconds until an instance that runs, and so is billed, and has no node is replaced.",
    )
    usual_start_s: float = Field(
        DEFAULT.usual_start_s,
        ge=0,
        description="What a new node usually takes; decides which fleet meets a deadline.",
    )
    drain_within_s: float = Field(
        DEFAULT.drain_within_s, ge=1, description="Time for a working node that is to go to give its job back."
    )
    windows: tuple[str, ...] = Field(
        (), description="Hours with other bounds: `mon-fri 08:00-20:00 Europe/Berlin min=2 max=9`."
    )

    @field_validator("max_nodes")
    @classmethod
    def _at_least_the_fewest(cls, most: int, info: ValidationInfo) -> int:
        fewest = info.data.get("min_nodes", 0)
        if most < fewest:
            raise ValueError(f"is less than min_nodes, {fewest}")
        return most

    @field_validator("windows")
    @classmethod
    def _are_windows(cls, windows: tuple[str, ...]) -> tuple[str, ...]:
        for window in windows:
            parse_window(window)
        return windows

    def policy(self) -> ScalingPolicy:
        """As the rules want it."""
        price = self.max_price_usd_per_hour
        same = self.model_dump(exclude={"max_price_usd_per_hour", "windows"})
        return ScalingPolicy(
            **same,
            max_price_micro_usd_per_hour=None if price is None else round(price * MICRO_USD),
            windows=tuple(parse_window(each) for each in self.windows),
        )


class ChecksTable(_Table):
    """`[fleets.NAME.checks]`: what a node has to find out about itself before it gets work."""

    min_driver: str | None = Field(
        None, pattern=r"^\d+(\.\d+)*$", description="Version of the graphics driver, such as 550.54."
    )
    min_vram_bytes: int | None = Field(None, ge=0, description="GPU memory that is free.")
    min_disk_bytes: int | None = Field(None, ge=0, description="Space that is free in the work directory.")
    min_download_bytes_per_s: float | None = Field(None, gt=0, description="Speed of a download from storage.")
    min_upload_bytes_per_s: float | None = Field(None, gt=0, description="Speed of an upload to storage.")
    max_clock_skew_s: float | None = Field(None, gt=0, description="Difference to the server's clock.")

    def thresholds(self) -> NodeThresholds:
        """As the rules want them."""
        return NodeThresholds(**self.model_dump())


class FleetTable(_Table):
    """`[fleets.NAME]`."""

    driver: str = Field(description="local, static, salad, kubernetes or skypilot.")
    kinds: tuple[str, ...] = Field(("train",), min_length=1, description="Kinds of job that its nodes take.")
    places: int = Field(1, ge=1, le=64, description="Jobs that a node trains in one batch.")
    vram_bytes: int | None = Field(
        None, ge=0, description="GPU memory of a node, for jobs that need some. Default: it is taken to be enough."
    )
    scaling: ScalingTable = Field(default_factory=ScalingTable, description="How many nodes; see below.")
    checks: ChecksTable = Field(
        default_factory=ChecksTable, description="What a node has to be capable of; see below."
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="The driver's own: see its page in docs/fleets."
    )


TABLES: dict[str, type[_Table]] = {
    "fleets.NAME": FleetTable,
    "fleets.NAME.scaling": ScalingTable,
    "fleets.NAME.checks": ChecksTable,
}
