"""Liveness: from whatever state, every job ends within so many rounds, if nodes live on and nothing harms them more.

Either the nodes do what they get, or each attempt fails for one and the same reason: then every job has to fail by a
rule of its own.
"""

import itertools

from tests.contract.model.invariants import InvariantChecker
from tests.contract.model.model_rig import NOT_ASKED_FOR, PLACES, ModelRig, NodePlace

from giornata.control.attempts.claiming.claim import claim_once
from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.attempts.ending.lift_bans import lift_bans
from giornata.control.attempts.ending.reported_ends import fail
from giornata.control.fleets.reap import reap
from giornata.control.jobs.stop_job import expire_deadlines
from giornata.domain.jobs.job import TERMINAL
from giornata.domain.jobs.reasons import BAN, REPORTABLE_FAILURES, Reason
from giornata.protocol.node.work import Claim, CompleteAttempt, FailAttempt, Lease

HOUR_MS = 3_600_000
BANNING = sorted(reason for reason in REPORTABLE_FAILURES if BAN[reason])
# The longest quarantine is a day, and whatever else has to be waited for is shorter.
ROUNDS = 30
# A machine on which everything fails gets one job a day in the end.
FAILING_ROUNDS = 150
NEW_PROCESSES = 999_000


class LivingNodes:
    """The nodes of all places, each by a process of its own that began a moment ago."""

    def __init__(self, rig: ModelRig, checker: InvariantChecker, *, failing: Reason | None) -> None:
        self._rig, self._checker, self._failing = rig, checker, failing
        self._requests = itertools.count(1)

    def live_on(self, *, latest_ms: int) -> bool:
        """Whether every job ends. `latest_ms`: the highest that the clock ever showed before it was set back."""
        round_s = 24 * 3600 if self._failing else 3600
        behind_ms = max(0, latest_ms - self._rig.clock.now_ms())
        rounds = (FAILING_ROUNDS if self._failing else ROUNDS) + -(-behind_ms // HOUR_MS)
        return any(self._all_ended_after(round_s) for _ in range(rounds))

    def _all_ended_after(self, round_s: float) -> bool:
        ctx = self._rig.ctx
        self._rig.clock.advance_s(round_s)
        expire_deadlines(ctx)
        lapse_leases(ctx)
        self._work()
        # Those who have just asked are heard of, so there is somebody for jobs to go back to.
        reap(ctx)
        lift_bans(ctx)
        self._work()
        return all(row.state in TERMINAL for row in self._checker.look().jobs if row.kind not in NOT_ASKED_FOR)

    def _work(self) -> None:
        for place in PLACES:
            while (lease := self._claim(place)) is not None:
                self._end(lease)

    def _claim(self, place: NodePlace) -> Lease | None:
        node, request_id = place.process(NEW_PROCESSES), f"living-{next(self._requests):07d}"
        return claim_once(
            self._rig.ctx, place.caller, Claim(request_id=request_id, node=node, kinds=place.kinds)
        ).lease

    def _end(self, lease: Lease) -> None:
        if self._failing is None:
            complete(self._rig.ctx, lease.attempt_id, CompleteAttempt(step=100))
        else:
            report = FailAttempt(reason=self._failing, message="it goes wrong here always")
            fail(self._rig.ctx, lease.attempt_id, report)
