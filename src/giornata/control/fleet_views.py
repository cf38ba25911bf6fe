"""The believed state of the fleets, in the form that the rules of scaling need."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from giornata.control.context import Context, GovernedFleet
from giornata.control.ports.fleet import Instance, InstanceState
from giornata.control.ports.node_queries.fleet_store import FleetNode, FleetRow, InstanceRow
from giornata.control.ports.node_queries.work_rows import QueuedDemand
from giornata.control.ports.store import Transaction
from giornata.domain.billing.money import MS_PER_HOUR
from giornata.domain.fleets.capacity import (
    Demand,
    InstanceView,
    Offer,
    Use,
    with_deadlines,
    with_joinable,
    within_rooms,
)
from giornata.domain.fleets.fleet_plan import FleetView, ScalingLimits, ScalingPolicy, limited
from giornata.domain.fleets.fleet_share import Bidder, share_demand
from giornata.domain.fleets.replacement import may_reallocate
from giornata.domain.fleets.starts import FAILED_STARTS, NodeStart
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.protocol.project.admin import ROOT_PROJECT

# Nodes that have been silent for longer say nothing about since when an instance is without one.
REMEMBERED_MS = 3_600_000
# Longer than any pause between two looks.
AWAKE_BREAK_MS = 300_000
REALLOCATIONS_PER_MINUTE = 10
# A node with a free place asks for a companion every ten seconds at least. A job not taken for longer waits for a
# place that is there on paper only: another node is needed.
JOINS_WITHIN_MS = 60_000


def offer_of(governed: GovernedFleet) -> Offer:
    """Return the abilities of a node that is still to come."""
    return Offer(kinds=governed.kinds, vram_bytes=governed.vram_bytes, places=governed.places)


def scaling_of(governed: GovernedFleet, row: FleetRow) -> ScalingPolicy:
    """Return the policy of the settings, with an operator's later limits in their place."""
    limits = ScalingLimits(**row.limits)
    return limited(governed.scaling, limits, paused=row.paused_at_ms is not None)


def called(instance: Instance | InstanceRow) -> str:
    """Return the instance's name for people: the id, after the name where the provider has one besides."""
    return instance.id if instance.name in {"", instance.id} else f"{instance.name} ({instance.id})"


def reallocations_per_minute(governed: GovernedFleet) -> int:
    """Return how many instances may be replaced in a minute."""
    said = governed.fleet.limits.reallocations_per_minute
    return REALLOCATIONS_PER_MINUTE if said is None else said


def view_of(tx: Transaction, ctx: Context, name: str, *, at_ms: int) -> FleetView | None:
    """Return the fleet with its share of the queue; None while its provider has not been listed yet."""
    by_name = {each.view.name: each for each in bidders(tx, ctx, at_ms=at_ms)}
    if name not in by_name:
        return None
    room = _room_to_join([each.view for each in by_name.values()])
    demand = demand_of(tx, room=room, queued_since_ms=at_ms - JOINS_WITHIN_MS)
    shares = share_demand(demand, tuple(by_name.values()), at_ms)
    return replace(by_name[name].view, demand=shares.get(name, ()))


def _room_to_join(views: Sequence[FleetView]) -> Mapping[str, int]:
    """Return the free places beside running jobs, by the joint key that a job needs to join them."""
    room: dict[str, int] = defaultdict(int)
    for instance in (each for view in views for each in view.instances if each.stays and each.sound):
        if instance.joint_key is not None and instance.room:
            room[instance.joint_key] += instance.room
    return room


def demand_of(
    tx: Transaction, *, room: Mapping[str, int] | None = None, queued_since_ms: int = 0
) -> tuple[Demand, ...]:
    """Return all queued jobs by their needs of a node and their deadlines.

    `room` has the free places beside running jobs by joint key; of the jobs that may join them, those that have come
    since `queued_since_ms` are counted besides.
    """
    # A queued order is no job that a node takes. What waits for a place of its project fills no node either.
    jobs = [_group_of(each) for each in tx.jobs.demand() if each.kind not in ORDER_KINDS]
    groups = [*within_rooms(jobs, _rooms(tx)), *map(_group_of, tx.picture_orders.demand())]
    urgent = [
        Demand(
            kind=each.kind,
            jobs=each.jobs,
            min_vram_bytes=each.min_vram_bytes,
            project_id=each.project_id,
            deadline_at_ms=each.deadline_at_ms,
        )
        for each in tx.fleets.deadlines()
    ]
    joinable = [
        Demand(
            kind=each.kind,
            jobs=each.jobs,
            min_vram_bytes=each.min_vram_bytes,
            project_id=each.project_id,
            joint_key=each.joint_key,
        )
        for each in (tx.fleets.joinable(room, queued_since_ms=queued_since_ms) if room else ())
    ]
    return with_deadlines(with_joinable(groups, joinable), urgent)


def _group_of(queued: QueuedDemand) -> Demand:
    return Demand(
        kind=queued.kind,
        jobs=queued.count,
        min_vram_bytes=queued.min_vram_bytes,
        project_id=queued.project_id,
        banned_machines=queued.banned_machines,
        only_machine_id=queued.only_machine_id,
    )


def _rooms(tx: Transaction) -> Mapping[str, int]:
    """Return how many more jobs each project with a ceiling may begin."""
    ceilings = tx.quotas.ceilings()
    running = tx.quotas.running() if ceilings else {}
    return {project_id: max(0, most - running.get(project_id, 0)) for project_id, most in ceilings.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listening:
    """The instants that decide which nodes are silent.

    A node seen since `heard_since_ms` is there. A server has listened without a break since `awake_since_ms`.
    """

    heard_since_ms: int
    awake_since_ms: int


def instance_views(tx: Transaction, ctx: Context, governed: GovernedFleet, *, at_ms: int) -> tuple[InstanceView, ...]:
    """Return the fleet's instances with the nodes on them."""
    nodes = NodesOn(tx.fleets.nodes(governed.name, seen_since_ms=at_ms - REMEMBERED_MS))
    unfit = tx.fleets.unfit_machines()
    heard_since_ms = at_ms - round(ctx.policy.node_gone_after_s * 1000)
    # After an hour without a server every node is one that was not heard of for an hour.
    awake_since_ms = ctx.memory.awake_since_ms(at_ms=at_ms, break_ms=AWAKE_BREAK_MS)
    listening = _Listening(heard_since_ms=heard_since_ms, awake_since_ms=awake_since_ms)
    return tuple(
        _instance(row, nodes, governed, unfit=unfit, listening=listening)
        for row in tx.fleets.instances(governed.name)
        if row.state != InstanceState.STOPPING or row.ended_at_ms is not None or row.leaving_at_ms is not None
    )


class NodesOn:
    """Finds the node last heard of on an instance: by what it says it is, or by its machine when it does not know."""

    def __init__(self, nodes: Sequence[FleetNode]) -> None:
        # The latest come first, and are written over the others.
        self._by_instance = {each.instance_id: each for each in reversed(nodes) if each.instance_id is not None}
        self._by_machine = {each.machine_id: each for each in reversed(nodes) if each.instance_id is None}
        self._asked_at_ms: dict[str, int] = {}
        for each in reversed(nodes):
            if each.start is NodeStart.DONE:
                self._asked_at_ms[each.instance_id or each.machine_id] = each.last_seen_at_ms

    def of(self, instance: InstanceRow) -> FleetNode | None:
        """Return the node on the instance; None when no node has been heard of there."""
        return self._by_instance.get(instance.id) or self._by_machine.get(instance.machine_id or "")

    def asked_at_ms(self, instance: InstanceRow) -> int:
        """Return when a node past its start was last heard of on the instance; 0: never."""
        by_machine = self._asked_at_ms.get(instance.machine_id or "", 0)
        return self._asked_at_ms.get(instance.id, by_machine)


def bidders(tx: Transaction, ctx: Context, *, at_ms: int) -> list[Bidder]:
    """Return the governed fleets whose provider has been listed."""
    rows = {row.name: row for row in tx.fleets.all() if row.seen_at_ms > 0}
    return [_bidder(tx, ctx, each, rows[name], at_ms=at_ms) for name, each in ctx.fleets.items() if name in rows]


def _bidder(tx: Transaction, ctx: Context, governed: GovernedFleet, row: FleetRow, *, at_ms: int) -> Bidder:
    limits = governed.fleet.limits
    recent = tx.fleets.reallocations(governed.name, since_ms=at_ms - 60_000)
    instances = instance_views(tx, ctx, governed, at_ms=at_ms)
    view = FleetView(
        name=governed.name,
        asked=row.desired,
        offer=offer_of(governed),
        instances=instances,
        price_micro_usd_per_hour=row.price_micro_usd_per_hour,
        most_nodes=limits.most_nodes,
        most_nodes_reason=limits.most_nodes_reason,
        moves=limits.moves,
        reallocations_left=max(0, reallocations_per_minute(governed) - recent),
        awaited_at_ms=row.awaited_at_ms,
        share_left=share_left(tx, ctx, governed, nodes=len(instances), at_ms=at_ms),
        health=ctx.policy.health,
        changed_at_ms=row.changed_at_ms,
    )
    return Bidder(view=view, policy=scaling_of(governed, row), in_trouble=bool(row.trouble))


def share_left(tx: Transaction, ctx: Context, governed: GovernedFleet, *, nodes: int, at_ms: int) -> int:
    """Return how many of the fleet's `nodes` may still be replaced now; see `domain.reaping`."""
    limits = governed.fleet.limits
    longest_ms = max(MS_PER_HOUR, round(limits.excluded_after_reallocation_s * 1000))
    before = tx.machines.reallocations(governed.name, since_ms=at_ms - longest_ms)
    return may_reallocate(
        nodes=nodes,
        reallocated_at_ms=[each.at_ms for each in before],
        per_minute=limits.reallocations_per_minute,
        excluded_s=limits.excluded_after_reallocation_s,
        policy=ctx.policy.reap,
        now_ms=at_ms,
    )


def _instance(
    row: InstanceRow, nodes: NodesOn, governed: GovernedFleet, *, unfit: frozenset[str], listening: _Listening
) -> InstanceView:
    node, asked_at_ms = nodes.of(row), nodes.asked_at_ms(row)
    # Of a process that is restarted again and again, the first that failed.
    began_at_ms = 0 if row.failed_starts else row.began_at_ms or 0
    view = InstanceView(
        id=row.id,
        offer=offer_of(governed),
        machine_id=row.machine_id or (node.machine_id if node else None),
        since_ms=max(row.first_listed_at_ms, row.running_at_ms or 0, began_at_ms, asked_at_ms),
        asked_ms=row.first_listed_at_ms,
        leaving_since_ms=row.leaving_at_ms,
        ended=row.ended_at_ms is not None,
        billed=row.state == InstanceState.RUNNING or row.failed_starts > 0,
        came=asked_at_ms > 0,
        fails_to_start=row.failed_starts >= FAILED_STARTS or (node is not None and node.start is NodeStart.FAILED),
    )
    view = replace(view, sound=view.machine_id not in unfit)
    if row.renewing:
        return _renewing(view, row, node)
    silent = node is None or node.last_seen_at_ms < listening.heard_since_ms or node.start is not NodeStart.DONE
    if node is None or (silent and not node.live):
        return replace(view, since_ms=max(view.since_ms, listening.awake_since_ms))
    serves_all = node.project_id == ROOT_PROJECT
    offer = Offer(
        kinds=node.kinds,
        vram_bytes=governed.vram_bytes if node.vram_bytes is None else node.vram_bytes,
        places=node.places,
        project_id=None if serves_all else node.project_id,
    )
    view = replace(view, offer=offer, since_ms=node.idle_since_ms, sound=view.sound and not node.draining)
    if not node.live:
        return replace(view, use=Use.IDLE)
    return replace(view, use=Use.BUSY, taken=node.live, joint_key=node.joint_key)


def _renewing(view: InstanceView, row: InstanceRow, node: FleetNode | None) -> InstanceView:
    """Return the view of an instance that comes again with other settings. It counts as one that starts, once it has
    let go of its job.
    """
    use = Use.BUSY if node is not None and node.live else Use.NONE
    since_ms = max(view.since_ms, row.leaving_at_ms or 0)
    return replace(view, use=use, since_ms=since_ms, leaving_since_ms=None)
