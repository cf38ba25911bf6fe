"""The ancestor's autoscaler, its reaper, and the person who has to help."""

from collections import Counter
from collections.abc import Callable

from benchmarks.simulate.ancestor import FAILURES_PER_WORKER, AncestorPlane
from giornata.domain.errors import FleetUnavailable, InstanceGone
from giornata.simulate.agenda import Agenda
from giornata.simulate.rented.provider import ModeledFleet

CRON_S = 300.0
SCALE_TO_ZERO_S = 600.0  # assumed: never published
# Somebody looks every so often, and helps when nothing moves although there is work and there are nodes: assumed.
LOOKS_EVERY_S = 1800.0


class Autoscaler:
    """Every five minutes: as many replicas as jobs that are not done, and those that were done a moment ago (D43)."""

    def __init__(self, agenda: Agenda, plane: AncestorPlane, fleet: ModeledFleet, *, most: int) -> None:
        self._agenda, self._plane, self._fleet, self._most = agenda, plane, fleet, most

    def begin(self) -> None:
        """Turn for ever."""
        self._turn()

    def _turn(self) -> None:
        self._agenda.after(CRON_S, self._turn)
        if self._plane.away:
            return
        try:
            self._scale()
        except FleetUnavailable:
            return  # no retries, no backoff (D48): the next turn

    def _scale(self) -> None:
        since_ms = self._agenda.now_ms() - SCALE_TO_ZERO_S * 1000
        counts = self._plane.counts()
        active = min(self._most, counts.queued + counts.at_work)
        lately = sum(row.touched_ms > since_ms for row in self._plane.rows.values())
        if active > 0:
            self._fleet.desired(min(self._most, active + (lately if active < self._most else 0)))
        elif not lately:
            self._fleet.desired(0)
        else:
            self._reap()  # only here: with no job active and one just done (D39)

    def _reap(self) -> None:
        bans = Counter(machine_id for machine_id, _ in self._plane.bans)
        for instance in self._fleet.list():
            if bans[instance.machine_id or ""] >= FAILURES_PER_WORKER:
                try:
                    self._fleet.reallocate(instance.id, reason="too many failures")
                except InstanceGone:
                    continue


class Operator:
    """A person: reallocates every node that stands idle, when work is left and nobody is at it."""

    def __init__(
        self, agenda: Agenda, plane: AncestorPlane, fleet: ModeledFleet, *, waiting: Callable[[], int]
    ) -> None:
        self._agenda, self._plane, self._fleet, self._waiting = agenda, plane, fleet, waiting
        self._stuck_before = False
        self.by_hand = 0

    def begin(self) -> None:
        """Look every now and then."""
        self._agenda.after(LOOKS_EVERY_S, self._look)

    def _look(self) -> None:
        self._agenda.after(LOOKS_EVERY_S, self._look)
        counts = self._plane.counts()
        work_left = counts.queued + counts.at_work > 0
        stuck = work_left and 0 < self._fleet.running <= self._waiting()
        if stuck and self._stuck_before:
            self._help()
        self._stuck_before = stuck

    def _help(self) -> None:
        try:
            for instance in self._fleet.list()[:1]:
                self._fleet.reallocate(instance.id, reason="by hand")
                self.by_hand += 1
        except (FleetUnavailable, InstanceGone):
            return
