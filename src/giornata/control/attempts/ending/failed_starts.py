"""Starts of nodes that failed: counted from what a provider lists and what nodes said, and held against machines.

Done in the transaction that notes the listing. A provider that counts restarts is believed. Where none counts them,
the nodes' own reports do: each process is a node of its own, and reports its checks before it asks for work.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from giornata.control.attempts.ending.judge_machines import put_judged
from giornata.control.context import Context, GovernedFleet
from giornata.control.ports.fleet import Instance, InstanceState
from giornata.control.ports.node_queries.fleet_store import FleetNode, InstanceRow
from giornata.control.ports.store import Transaction
from giornata.domain.fleets.starts import FAILED_STARTS, NodeStart, Starts, after_restarts, failed_in_a_row
from giornata.domain.jobs.reasons import Reason
from giornata.domain.machines.health import Failure, common_cause, failed, newcomer, taken_back

# Longer than any pause between two looks: nobody knows what happened meanwhile.
UNSEEN_MS = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StartsFound:
    """The starts of one instance, as a listing tells. `began_at_ms`: when the process began that ended last.

    `failed_now`: another start has failed. `asks`: its process has asked for work. `came`: it does where starts had
    failed before.
    """

    instance_id: str
    machine_id: str | None
    starts: Starts
    began_at_ms: int = 0
    failed_now: bool = False
    asks: bool = False
    came: bool = False


class Processes:
    """The processes of nodes on each instance, in the order in which they appeared."""

    def __init__(self, nodes: Sequence[FleetNode]) -> None:
        self._by_instance: dict[str, list[FleetNode]] = defaultdict(list)
        self._by_machine: dict[str, list[FleetNode]] = defaultdict(list)
        for node in sorted(nodes, key=lambda each: (each.first_seen_at_ms, each.id)):
            if node.instance_id is None:
                self._by_machine[node.machine_id].append(node)
            else:
                self._by_instance[node.instance_id].append(node)

    def on(self, instance: Instance | InstanceRow) -> Sequence[FleetNode]:
        """Return the processes on the instance: by the instance that they name, or by their machine when they do not
        know.
        """
        return self._by_instance.get(instance.id) or self._by_machine.get(instance.machine_id or "") or ()


def find_starts(
    listed: Mapping[str, Instance],
    believed: Mapping[str, InstanceRow],
    nodes: Sequence[FleetNode],
    *,
    at_ms: int,
) -> Mapping[str, StartsFound]:
    """Return the starts of each listed instance, by its id. `believed` is what was listed before."""
    processes = Processes(nodes)
    gone = {
        each.machine_id: each
        for each in sorted(believed.values(), key=lambda row: row.first_listed_at_ms)
        if each.id not in listed and each.leaving_at_ms is None and each.ended_at_ms is None and each.machine_id
    }
    return {
        each.id: _found(each, believed.get(each.id) or _before(each, gone), processes, at_ms=at_ms)
        for each in listed.values()
    }


def _before(instance: Instance, gone: Mapping[str, InstanceRow]) -> InstanceRow | None:
    """Return the instance that was in its place, where each start is an instance of its own."""
    row = gone.get(instance.machine_id or "")
    return row if row is not None and (instance.restarts or 0) > row.restarts else None


def _found(instance: Instance, past: InstanceRow | None, processes: Processes, *, at_ms: int) -> StartsFound:
    plain = StartsFound(instance_id=instance.id, machine_id=instance.machine_id, starts=Starts())
    if past is None:
        return _as_told(replace(plain, starts=Starts(restarts=instance.restarts or 0)), instance, at_ms)
    had = Starts(restarts=past.restarts, began_at_ms=past.began_at_ms, failed=past.failed_starts)
    if _says_nothing(past, at_ms=at_ms):
        return replace(plain, starts=replace(had, restarts=_restarts(instance, past), began_at_ms=at_ms))
    began_at_ms = past.began_at_ms or past.first_listed_at_ms
    nodes = processes.on(past)
    had_asked = any(each.start is NodeStart.DONE and each.last_seen_at_ms >= began_at_ms for each in nodes)
    now = after_restarts(had, restarts=_restarts(instance, past), had_asked=had_asked, at_ms=at_ms)
    if past.state != InstanceState.RUNNING and instance.state is InstanceState.RUNNING and not now.failed:
        now = replace(now, began_at_ms=at_ms)
    if instance.restarts is None and nodes:
        now = replace(now, failed=failed_in_a_row([each.start for each in nodes]))
    found = replace(
        plain,
        machine_id=instance.machine_id or (nodes[-1].machine_id if nodes else None),
        starts=now,
        began_at_ms=began_at_ms,
        failed_now=now.failed > (0 if had_asked else had.failed),
        asks=had_asked,
        came=had_asked and had.failed > 0,
    )
    return _as_told(found, instance, at_ms)


def _says_nothing(past: InstanceRow, *, at_ms: int) -> bool:
    """Return True when an end of the node tells nothing about its start.

    A node that was told to leave ends, and one that finds no server for a while does, too.
    """
    leaves = past.leaving_at_ms is not None or past.ended_at_ms is not None
    return leaves or past.last_listed_at_ms < at_ms - UNSEEN_MS


def _restarts(instance: Instance, past: InstanceRow) -> int:
    """Return the provider's count of restarts. Without one, an instance that ran, and starts again on its machine,
    was restarted.
    """
    if instance.restarts is not None:
        return instance.restarts
    again = past.state == InstanceState.RUNNING and instance.state is InstanceState.STARTING
    return past.restarts + int(again and past.machine_id == instance.machine_id)


def _as_told(found: StartsFound, instance: Instance, at_ms: int) -> StartsFound:
    """Count a start as failed for good when the provider says so: it need not say it twice."""
    if not instance.cannot_start or found.starts.failed >= FAILED_STARTS:
        return found
    return replace(found, starts=replace(found.starts, failed=FAILED_STARTS, began_at_ms=at_ms))


def judge_starts(
    tx: Transaction, ctx: Context, governed: GovernedFleet, found: Mapping[str, StartsFound], *, at_ms: int
) -> None:
    """Hold starts that failed against their machines, unless most machines fail alike. A failure held against a
    machine is taken back when a node comes up on it."""
    each = found.values()
    came = {one.machine_id for one in each if one.came and one.machine_id}
    new = {one.machine_id: one for one in each if one.failed_now and one.machine_id}
    if not came and not new:
        return
    policy = ctx.policy.health
    failing = {one.machine_id for one in each if one.starts.failed and one.machine_id}
    fine = {one.machine_id for one in each if one.asks and one.machine_id}
    everybodys = common_cause(failing=failing, fine=fine, jobs=len(failing), policy=policy)
    cleared = came | (failing if everybodys else set())
    # A machine with several places on which another node works can start nodes.
    guilty = {} if everybodys else {machine: one for machine, one in new.items() if machine and machine not in fine}
    for machine_id in sorted(guilty):
        for kind in governed.kinds:
            tx.machines.make_sure(newcomer(machine_id, kind, policy=policy, at_ms=at_ms))
    keys = sorted((machine, kind) for machine in {*cleared, *guilty} for kind in governed.kinds)
    for key, health in tx.machines.lock_each(keys).items():
        judged = health
        if key[0] in cleared:
            judged = taken_back(judged, _is_of_a_start, policy=policy, at_ms=at_ms)
        if key[0] in guilty:
            judged = failed(judged, _failure(guilty[key[0]], at_ms=at_ms), policy=policy)
        put_judged(tx, ctx, health, judged, at_ms=at_ms)


def _is_of_a_start(failure: Failure) -> bool:
    return failure.reason is Reason.NODE_START


def _failure(found: StartsFound, *, at_ms: int) -> Failure:
    return Failure(
        attempt_id=f"{found.instance_id}:{at_ms}",
        job_id="",
        reason=Reason.NODE_START,
        began_at_ms=found.began_at_ms,
        at_ms=at_ms,
        weight=1.0,
    )
