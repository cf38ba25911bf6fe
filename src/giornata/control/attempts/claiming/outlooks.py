"""Find out what becomes of queued jobs that no connected node may take: see `domain.jobs.backoff`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from giornata.control.context import Context
from giornata.control.fleet_views import bidders
from giornata.control.ports.node_queries.machine_store import BannedJob, ConnectedNode
from giornata.control.ports.store import Transaction
from giornata.domain.fleets.capacity import Demand, Offer
from giornata.domain.fleets.fleet_share import Bidder
from giornata.domain.jobs.backoff import BackoffNode, Outlook, outlook
from giornata.domain.machines.health import MachineState, cool_down_ends_ms
from giornata.protocol.project.admin import ROOT_PROJECT

# A process on the server's own machine comes within this time, or there is something wrong with it.
LOCAL_START_S = 120.0


class Outlooks:
    """Reads the connected nodes, their quarantines and the fleets once, for any number of jobs of one transaction."""

    def __init__(self, tx: Transaction, ctx: Context, *, at_ms: int) -> None:
        self._tx, self._ctx, self._at_ms = tx, ctx, at_ms
        since_ms = at_ms - round(ctx.policy.node_gone_after_s * 1000)
        self._nodes = tx.bans.connected(seen_since_ms=since_ms)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of job that connected nodes take."""
        return frozenset(kind for node in self._nodes for kind in node.kinds)

    def of(self, job: BannedJob) -> Outlook | None:
        """Return the job's outlook; None when a connected node may take it, or none serves its kind and project."""
        demand = Demand(
            kind=job.kind,
            jobs=1,
            min_vram_bytes=job.min_vram_bytes,
            project_id=job.project_id,
        )
        return outlook(
            demand,
            job.bans,
            self._hosts,
            fruitless=job.fruitless,
            arrival_s=self._arrival_s(demand, job),
            policy=self._ctx.policy.backoff,
            now_ms=self._at_ms,
        )

    @cached_property
    def _hosts(self) -> Sequence[BackoffNode]:
        quarantines = self._quarantines
        return [_host(node, quarantines.get(node.machine_id, {})) for node in self._nodes]

    @cached_property
    def _quarantines(self) -> Mapping[str, Mapping[str, int | None]]:
        known = self._tx.machines.get_each({node.machine_id for node in self._nodes}, self.kinds)
        found: dict[str, dict[str, int | None]] = {}
        for (machine_id, kind), health in known.items():
            if health.state is MachineState.QUARANTINED:
                ends_ms = cool_down_ends_ms(health, policy=self._ctx.policy.health)
                found.setdefault(machine_id, {})[kind] = ends_ms
        return found

    @cached_property
    def _bidders(self) -> Sequence[Bidder]:
        return bidders(self._tx, self._ctx, at_ms=self._at_ms)

    def _arrival_s(self, demand: Demand, job: BannedJob) -> float | None:
        """Return the seconds that a job waits for a fleet to bring another machine; None: no fleet can."""
        banned = frozenset(ban.machine_id for ban in job.bans)
        wanted = replace(demand, banned_machines=banned)
        able = [each for each in self._bidders if each.could_bring(wanted, self._at_ms)]
        return max((self._start_s(each) for each in able), default=None)

    def _start_s(self, bidder: Bidder) -> float:
        local = self._ctx.fleets[bidder.view.name].driver == "local"
        within_s = bidder.policy.startup_timeout_s
        return min(within_s, LOCAL_START_S) if local else within_s


def _host(node: ConnectedNode, quarantines: Mapping[str, int | None]) -> BackoffNode:
    project_id = None if node.project_id == ROOT_PROJECT else node.project_id
    offer = Offer(kinds=node.kinds, vram_bytes=node.vram_bytes, project_id=project_id)
    return BackoffNode(machine_id=node.machine_id, offer=offer, quarantines=quarantines)
