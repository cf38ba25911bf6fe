"""How many nodes a fleet should have."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """What the operator wants of a fleet."""

    min_nodes: int = 0
    max_nodes: int = 1
    warm_spares: int = 0  # nodes more than the work needs, while there is any
    idle_to_zero_s: float = 300.0  # how long nodes without work are kept
    most_up: int = 10  # nodes more in one step
    most_down: int = 10  # nodes fewer in one step
    pause_after_change_s: float = 0.0
    max_price_micro_usd_per_hour: int | None = None  # of one node; dearer ones are not asked for
