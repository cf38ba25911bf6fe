"""Decide the number of a fleet's nodes, and which nodes end, from the fleet's view and the operator's policy.

Nothing here knows a provider or a clock. Every decision says in words why.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from giornata.domain.fleets.capacity import (
    Demand,
    InstanceView,
    Placement,
    Use,
    could_take,
    jobs_in,
    nodes_for,
    place,
    takes,
)
from giornata.domain.fleets.fleet_plan import FleetView, Plan, ScalingPolicy, Step
from giornata.domain.fleets.starts import is_trial_due, never_comes, stopped, to_replace


@dataclass(slots=True, kw_only=True)
class _Need:
    """The nodes that the queued and running jobs need, and the reasons.

    `idle` are those that it leaves with nothing to do; for `awaited` of those that are not listed yet, jobs wait. On
    `stuck` no node is to be expected; those of them to `replace` are replaced now.
    `over`: no job waits that a node of this fleet could take. `all_awaited`: jobs wait for every node that has not
    started.
    """

    nodes: int
    work: int
    awaited: int
    over: bool
    all_awaited: bool
    idle: list[InstanceView]
    stuck: list[InstanceView]
    replace: list[InstanceView]
    left: list[Demand]
    stranded: list[Demand]
    needed: bool
    stopped: str
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Now:
    """The state that a scaling decision starts from.

    `count` nodes are to stay at present, listed or not; policy and provider allow `fewest` to `most` nodes.
    """

    view: FleetView
    policy: ScalingPolicy
    at_ms: int
    staying: list[InstanceView]
    count: int
    fewest: int
    most: int

    @property
    def unlisted(self) -> int:
        """The number of nodes that were requested and are not listed."""
        return max(0, self.count - len(self.staying))

    @property
    def paused(self) -> bool:
        """The number was changed a moment ago, and is one that is allowed."""
        changed_at_ms = self.view.changed_at_ms
        lately = changed_at_ms is not None and self.at_ms - changed_at_ms < self.policy.cooldown_s * 1000
        return lately and self.fewest <= self.count <= self.most


def plan_fleet(view: FleetView, policy: ScalingPolicy, now_ms: int) -> Plan:
    """The plan for the fleet now.

    A node at work is only ever told to go when the policy allows fewer nodes than are at work; it then writes a
    checkpoint first. Applied to its own outcome it changes nothing, unless a step limit held it back.
    """
    fewest, most = policy.bounds(now_ms)
    most = most if view.most_nodes is None else min(most, view.most_nodes)
    going = [each for each in view.instances if each.leaving_since_ms is not None and not each.ended]
    now = _Now(
        view=view,
        policy=policy,
        at_ms=now_ms,
        staying=[each for each in view.instances if each.stays],
        count=max(0, view.asked - len(going)),
        fewest=min(fewest, most),
        most=most,
    )
    need = _need(now)
    ending = tuple(each.id for each in going if _may_end(each, policy, now_ms))
    up, leaving, dropped = _change(now, need, room=max(0, most - view.asked + len(ending)))
    if ending:
        up = _held_back(up, need.reasons)
        dropped = max(dropped, _to_be_heard(now, need, ending))
    leaving = leaving or _unfit(now, need)
    gone = frozenset(each.instance_id for each in leaving)
    # Jobs that no present machine may take, and no new one comes for.
    short = bool(need.stranded) and up == 0 and not now.paused
    moved = _replacements(now, need, gone, short=short)
    told = [f"{each.instance_id} leaves: {each.reason}" for each in leaving]
    told += [f"{each.instance_id} is replaced: {each.reason}" for each in moved]
    return Plan(
        desired=max(0, view.asked - len(ending) - dropped + up),
        leaving=tuple(leaving),
        ending=ending,
        reallocate=tuple(moved),
        reasons=(*need.reasons, *told),
        jobs=jobs_in(view.demand),
        needed=need.needed,
        awaited=need.all_awaited,
        stopped=need.stopped,
    )


def _change(now: _Now, need: _Need, *, room: int) -> tuple[int, list[Step], int]:
    """Return the number of new nodes, the leaving nodes, and the number of withdrawn requests for unlisted nodes."""
    wanted = _within(need.nodes, now.fewest, now.most, need.reasons, paused=now.policy.paused)
    if need.nodes > now.most == now.view.most_nodes and now.view.most_nodes_reason:
        need.reasons.append(now.view.most_nodes_reason)
    if now.paused:
        if wanted != now.count:
            pause_s = now.policy.cooldown_s
            need.reasons.append(f"the number changed less than {pause_s:g} s ago")
        return 0, [], 0
    if wanted > now.count:
        if need.stopped:
            room = min(room, int(is_trial_due(now.view, now.at_ms)))
        return _growth(now.view, now.policy, wanted - now.count, room, need.reasons), [], 0
    if wanted < now.count:
        return 0, *_fewer(now, need, wanted)
    return 0, [], 0


def _held_back(up: int, reasons: list[str]) -> int:
    """Never scale up and down in one step: at an unchanged number the provider terminates nothing."""
    if up:
        reasons.append("not before those that leave are asked to end")
    return 0


def _unfit(now: _Now, need: _Need) -> list[Step]:
    """Idle nodes on unhealthy machines leave even while jobs wait: they can take no job and are billed.

    The reaper replaces such machines sooner, as long as it may; here nothing is excluded, so that the provider may
    give the same machine again. When most of the fleet is not fit, machines are hardly the cause, and all stay.
    """
    unfit = [each for each in need.idle if not each.sound and each.use is Use.IDLE]
    if not now.view.moves or now.paused or not need.needed or 2 * len(unfit) > len(now.staying):
        return []
    most = min(now.policy.max_scale_down, max(0, now.count - now.fewest))
    steps = []
    for each in sorted(unfit, key=_first_to_leave):
        idle_s = _idle_s(each, now, need)
        if idle_s >= now.policy.idle_timeout_s:
            steps.append(Step(instance_id=each.id, reason=f"machine not fit, nothing to do for {idle_s:.0f} s"))
    return steps[:most]


def _need(now: _Now) -> _Need:
    view, policy = now.view, now.policy
    stuck = [each for each in now.staying if never_comes(each, policy, now.at_ms)]
    replaced = to_replace(now.staying, view, policy, now.at_ms)
    busy = [each for each in now.staying if each.use is Use.BUSY]
    lost = {each.id for each in stuck}
    free = [each for each in now.staying if each.use is not Use.BUSY and each.id not in lost]
    # Asked for and not listed yet, or to come in the place of another.
    coming = now.unlisted + len(replaced)
    to_come = [InstanceView(id=f"to come {number}", offer=view.offer) for number in range(coming)]
    placement: Placement = place(view.demand, [*busy, *free, *to_come])
    new = [group for group in placement.left if could_take(group, view.offer, machine_id=None)]
    idle = [each for each in free if each.id not in placement.placed]
    work = len({*placement.placed, *(each.id for each in busy)})
    unused = len([each for each in idle if each.sound])
    unused += len([each for each in to_come if each.id not in placement.placed])
    needed = bool(work or new)
    # What is idle now cannot take what is left, or it would have been put there: it stands for spares at most.
    more = nodes_for(new, view.offer.places) + (max(0, policy.warm_spares - unused) if needed else 0)
    awaited = len([each for each in to_come if each.id in placement.placed])
    not_awaited = now.unlisted + len(stuck) - awaited + len([each for each in idle if each.use is Use.NONE])
    need = _Need(
        nodes=now.count + more if more else (work + policy.warm_spares if needed else 0),
        work=work,
        awaited=awaited,
        over=not placement.placed and not _any_waits(placement.left, now),
        all_awaited=needed and (bool(new) or not_awaited <= policy.warm_spares),
        idle=idle,
        stuck=stuck,
        replace=replaced,
        left=placement.left,
        stranded=[group for group in new if not any(takes(group, each) for each in [*busy, *free, *to_come])],
        needed=needed,
        stopped=stopped(now.staying, view, policy, now.at_ms),
    )
    need.reasons = _in_words(view, policy, need, busy=len(busy), placed=placement.placed)
    return need


def _any_waits(left: list[Demand], now: _Now) -> bool:
    """Return True when a node of this fleet could take one of these jobs: a new one, or a present one once free."""
    return any(
        could_take(group, now.view.offer, machine_id=None) or any(takes(group, each) for each in now.staying)
        for group in left
    )


def _in_words(view: FleetView, policy: ScalingPolicy, need: _Need, *, busy: int, placed: dict[str, int]) -> list[str]:
    words = [f"{busy} at work"] if busy else []
    words.append(_waiting(jobs_in(view.demand), sum(placed.values())))
    if need.needed and policy.warm_spares:
        words.append(f"{policy.warm_spares} warm spares")
    unfit = len([each for each in need.idle if not each.sound])
    if unfit:
        words.append(f"{unfit} on machines that are not fit count for nothing")
    if need.stuck:
        words.append(f"{len(need.stuck)} without a node that could ask for work count for nothing")
    if need.stopped:
        words.append(f"{need.stopped}: one more is tried each hour, and no others")
    for group in need.left:
        if not could_take(group, view.offer, machine_id=None):
            words.append(f"{group.jobs} jobs of kind {group.kind}: no node of this fleet could take them")
    return words


def _waiting(jobs: int, placed: int) -> str:
    """Describe the number of waiting jobs; `placed` of them wait for nodes that exist or are starting."""
    if not jobs:
        return "nothing waits"
    waiting = "1 job waits" if jobs == 1 else f"{jobs} jobs wait"
    if placed in {0, jobs}:
        return f"{waiting} for a node that is there or comes" if placed else waiting
    return f"{waiting}, {placed} for nodes that are there or come"


def _within(nodes: int, fewest: int, most: int, reasons: list[str], *, paused: bool) -> int:
    if paused:
        reasons.append("an operator paused the fleet: it has no nodes until it is resumed")
    elif nodes > most:
        reasons.append(f"{nodes} nodes would be needed, {most} are the most allowed")
    if nodes < fewest:
        reasons.append(f"{fewest} {'node is' if fewest == 1 else 'nodes are'} the fewest allowed")
    return min(max(nodes, fewest), most)


def _growth(view: FleetView, policy: ScalingPolicy, more: int, room: int, reasons: list[str]) -> int:
    price, ceiling = view.price_micro_usd_per_hour, policy.max_price_micro_usd_per_hour
    if ceiling is not None and price is not None and price > ceiling:
        reasons.append(f"no more: a node costs {price} micro-dollars an hour, {ceiling} is the most allowed")
        return 0
    up = min(more, policy.max_scale_up, room)
    reasons.append(f"{up} more" if up == more else f"{up} more of {more}: no larger step is allowed")
    return up


def _fewer(now: _Now, need: _Need, wanted: int) -> tuple[list[Step], int]:
    """The nodes that leave, and the number of unlisted nodes that are no longer requested."""
    # Above the maximum, requests that never came are given up before any present node: no node ends for them.
    never_came = min(max(0, now.count - len(now.staying)), max(0, now.count - now.most), now.policy.max_scale_down)
    if never_came:
        return [], never_came
    surplus, too_many = min(now.count - wanted, now.policy.max_scale_down), max(0, now.count - now.most)
    # Unfit machines do not count: no sound node goes because unfit ones are still there.
    spare = max(0, now.count - len([each for each in need.idle if not each.sound]) - wanted)
    kept = _kept(need, wanted)
    paused = "an operator paused the fleet"
    why_fewer = paused if now.policy.paused else "there are more nodes than are allowed"
    steps: list[Step] = []
    for each in sorted([*need.idle, *need.stuck], key=_first_to_leave):
        idle_s = _idle_s(each, now, need)
        patience_s = _patience_s(now, need) if each.id != kept else now.policy.idle_timeout_s
        if len(steps) < too_many:
            steps.append(Step(instance_id=each.id, reason=why_fewer))
        elif idle_s < patience_s or (each.sound and not spare):
            continue
        else:
            steps.append(Step(instance_id=each.id, reason=f"nothing to do for {idle_s:.0f} s"))
        spare -= int(each.sound and spare > 0)
    steps = steps[:surplus]
    dropped = min(_droppable(now, need, wanted), surplus - len(steps), max(spare, too_many - len(steps)))
    over = min(surplus, too_many) - len(steps) - dropped
    taken = {each.instance_id for each in steps}
    others = [each for each in now.staying if each.id not in taken]
    others.sort(key=lambda each: (each.use is Use.BUSY, each.id))
    why = paused if now.policy.paused else "fewer nodes are allowed than are at work"
    why = f"{why}; it writes a checkpoint first"
    steps += [Step(instance_id=each.id, reason=why) for each in others[: max(0, over)]]
    return steps, dropped


def _patience_s(now: _Now, need: _Need) -> float:
    """Return the seconds for which an unneeded node is kept.

    At the end of a queue all nodes but one leave at once by default.
    """
    policy = now.policy
    return min(policy.surplus_idle_s, policy.idle_timeout_s) if need.over else policy.idle_timeout_s


def _kept(need: _Need, wanted: int) -> str | None:
    """The one node that is kept for a while when no job waits: one that is up before one that starts.

    None: spares or the fewest allowed are kept in any case, or there is none.
    """
    fit = [each for each in need.idle if each.sound]
    if not need.over or wanted > need.work or not fit:
        return None
    return max(fit, key=lambda each: (each.use is Use.IDLE, each.since_ms, each.id)).id


def _first_to_leave(instance: InstanceView) -> tuple[bool, bool, int, str]:
    return instance.sound, instance.use is Use.NONE, instance.since_ms, instance.id


def _droppable(now: _Now, need: _Need, wanted: int) -> int:
    """Return the number of requested, unlisted nodes to give up; 0 beside work.

    A provider that has fewer nodes than requested may end any of them when fewer are requested.
    """
    if any(each.use is Use.BUSY for each in now.staying):
        return 0
    if now.count > now.most:
        return now.unlisted
    waited_s = (now.at_ms - max(now.view.awaited_at_ms or 0, now.view.changed_at_ms or 0)) / 1000
    if waited_s >= now.policy.idle_timeout_s:
        return max(0, now.unlisted - need.awaited)
    if not need.over or waited_s < _patience_s(now, need):
        return 0
    one = 0 if _kept(need, wanted) is not None or wanted > need.work else 1
    return max(0, now.unlisted - one)


def _to_be_heard(now: _Now, need: _Need, ending: Sequence[str]) -> int:
    """Return the number of unlisted nodes without waiting jobs to give up when other nodes end.

    A provider that has fewer nodes than requested ends none until fewer are requested than it has. At most
    `max_scale_down` nodes are given up at once.
    """
    least = max(need.nodes, now.fewest)
    unneeded = min(now.unlisted - need.awaited, now.view.asked - len(ending) - least)
    return max(0, min(unneeded, now.policy.max_scale_down))


def _idle_s(instance: InstanceView, now: _Now, need: _Need) -> float:
    since_ms = instance.since_ms
    if instance.use is Use.NONE:  # it was called for work that is there no more
        since_ms = max(since_ms, now.at_ms if need.all_awaited else now.view.awaited_at_ms or 0)
    return (now.at_ms - since_ms) / 1000


def _may_end(instance: InstanceView, policy: ScalingPolicy, now_ms: int) -> bool:
    """Told before, and no job is left on it; or it was given time enough."""
    waited_ms = now_ms - (instance.leaving_since_ms or now_ms)
    return waited_ms > 0 and (instance.use is not Use.BUSY or waited_ms > policy.drain_timeout_s * 1000)


def _why_stuck(instance: InstanceView) -> str:
    failed = "its node ends again and again before it asks for work"
    return failed if instance.fails_to_start else "no node has come up on it for too long"


def _stuck_and_needed(now: _Now, need: _Need) -> int:
    """Count the stuck nodes that need a substitute: those that jobs wait for, and up to the wanted number."""
    wanted = min(max(need.nodes, now.fewest), now.most)
    return max(0, need.awaited - now.unlisted, wanted - (now.count - len(need.stuck)))


def _replacements(now: _Now, need: _Need, gone: frozenset[str], *, short: bool) -> list[Step]:
    view, stuck = now.view, [each for each in need.replace if each.id not in gone]
    steps = [Step(instance_id=each.id, reason=_why_stuck(each)) for each in stuck[: _stuck_and_needed(now, need)]]
    idle = [each for each in need.idle if each.id not in gone]
    if short:
        banned = sorted({machine for group in need.stranded for machine in group.banned_machines})
        why = "jobs wait that no present machine may take" + (f" (banned: {', '.join(banned[:5])})" if banned else "")
        if not view.moves or not idle:
            need.reasons.append(
                f"{why}; {'another machine is needed' if idle else 'a node is replaced once it is idle'}"
            )
        else:
            several = nodes_for(need.stranded, view.offer.places)
            longest_first = sorted(idle, key=lambda each: (each.use is Use.NONE, each.since_ms, each.id))
            steps += [Step(instance_id=each.id, reason=why) for each in longest_first[:several]]
    if len(steps) > view.reallocations_left:
        need.reasons.append(
            f"{len(steps)} to replace, the provider allows {view.reallocations_left} more this minute"
        )
    return steps[: view.reallocations_left]
