"""The inputs and the result of scaling: the operator's policy, the state of the fleet, the plan."""

from dataclasses import asdict, dataclass, field, replace

from giornata.domain.fleets.capacity import Demand, InstanceView, Offer
from giornata.domain.fleets.scaling_windows import Window
from giornata.domain.machines.health import HealthPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """The operator's limits and times for a fleet."""

    min_nodes: int = 0
    max_nodes: int = 1
    warm_spares: int = 0  # nodes more than the work needs, while there is any
    idle_timeout_s: float = 300.0  # how long nodes without work are kept
    surplus_idle_s: float = 0.0  # the same when no job waits, for all of them but one
    max_scale_up: int = 10  # nodes more in one step
    max_scale_down: int = 10  # nodes fewer in one step
    cooldown_s: float = 0.0
    max_price_micro_usd_per_hour: int | None = None  # of one node; dearer ones are not asked for
    # An instance that is not billed yet is replaced after so long. By a provider's published curve one in seven
    # takes over half an hour and nearly all come in 80 minutes; to wait is free, and a machine given up is excluded
    # for days.
    startup_timeout_s: float = 5400.0
    billed_startup_timeout_s: float = 600.0  # the same for an instance that is billed and has no node
    expected_startup_s: float = 600.0  # what a deadline has to leave room for when a node is still to come
    drain_timeout_s: float = 900.0  # for the last checkpoint of a node that is to go
    windows: tuple[Window, ...] = ()
    paused: bool = False  # an operator wants no nodes for the time being

    def bounds(self, now_ms: int) -> tuple[int, int]:
        """(fewest, most) nodes at this instant: windows may raise the one and change the other."""
        if self.paused:
            return 0, 0
        held = [each for each in self.windows if each.holds(now_ms)]
        most = [each.max_nodes for each in held if each.max_nodes is not None]
        fewest = max([self.min_nodes, *(each.min_nodes or 0 for each in held)])
        highest = max(most) if most else self.max_nodes
        return min(fewest, highest), highest


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """A fleet as believed now. Instants are epoch ms.

    `asked` is what the provider was last asked for; `offer` what a node that is still to come can do. `demand` is
    this fleet's share. `moves`: what is reallocated comes back on another machine. `reallocations_left` are those
    that the provider still allows in this minute, `share_left` those that the reaper's share allows, None: any
    number. At `awaited_at_ms` jobs last waited for every node that had not started.
    """

    name: str
    asked: int
    offer: Offer
    instances: tuple[InstanceView, ...] = ()
    demand: tuple[Demand, ...] = ()
    price_micro_usd_per_hour: int | None = None
    most_nodes: int | None = None
    most_nodes_reason: str = ""  # what `most_nodes` comes from, in the provider's terms
    moves: bool = True
    reallocations_left: int = 0
    share_left: int | None = None
    health: HealthPolicy = field(default_factory=HealthPolicy)
    awaited_at_ms: int | None = None
    changed_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Something that is to happen to one instance, and why."""

    instance_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The changes to a fleet that one scaling step decides.

    `desired` is what to ask of the provider; `leaving` get no more work from now on; `ending` are those of them that
    hold no job any more, and go with this `desired`; `reallocate` are to be replaced by others. `needed`: there is
    work for the fleet; `awaited`: jobs wait for every node that has not started. `stopped` says why no more are asked
    for although jobs wait; empty: they are.
    """

    desired: int
    leaving: tuple[Step, ...] = ()
    ending: tuple[str, ...] = ()
    reallocate: tuple[Step, ...] = ()
    reasons: tuple[str, ...] = ()
    jobs: int = 0
    needed: bool = False
    awaited: bool = False
    stopped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingLimits:
    """Limits that replace those of the settings. None: the settings hold."""

    min_nodes: int | None = None
    max_nodes: int | None = None
    max_price_micro_usd_per_hour: int | None = None

    def set_ones(self) -> dict[str, int]:
        """The limits that an operator set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def limited(policy: ScalingPolicy, limits: ScalingLimits, *, paused: bool) -> ScalingPolicy:
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
