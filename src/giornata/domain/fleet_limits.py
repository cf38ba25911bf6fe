"""What an operator sets for a fleet while the server runs. It wins over the settings until it is taken back."""

from dataclasses import asdict, dataclass, replace

from giornata.domain.fleet_plan import ScalingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLimits:
    """Limits that replace those of the settings. None: the settings hold."""

    min_nodes: int | None = None
    max_nodes: int | None = None
    max_price_micro_usd_per_hour: int | None = None

    def set_ones(self) -> dict[str, int]:
        """Those that an operator set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def limited(policy: ScalingPolicy, limits: FleetLimits, *, paused: bool) -> ScalingPolicy:
    """The policy with the operator's limits. A limit that is set holds at every hour, whatever the windows say."""
    windows = tuple(
        replace(
            window,
            min_nodes=window.min_nodes if limits.min_nodes is None else None,
            max_nodes=window.max_nodes if limits.max_nodes is None else None,
        )
        for window in policy.windows
    )
    return replace(policy, **limits.set_ones(), windows=windows, paused=paused)
