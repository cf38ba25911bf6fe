"""What comes of several attempts on one node: claims for companions, and faults that end all of them."""

from tests.contract.model.actions import Actions
from tests.contract.model.calls import DIED, TrackedLease
from tests.contract.model.claim_actions import MODELS
from tests.contract.model.model_rig import key_of
from tests.contract.model.node_actions import FAILURES, LATEST

from giornata.control.attempts.ending.reported_ends import fail
from giornata.domain.jobs.reasons import AMBIGUOUS_WHEN_SHARED, Reason
from giornata.protocol.node.work import FailAttempt

JOINT_KEYS = tuple(key_of("train", model) for model in MODELS)


class Beside(Actions):
    """Actions of nodes that hold several leases."""

    def claim_companion(self, a: int, b: int) -> None:
        """One that may join what a node is at work on, or, for a node may err, something else."""
        if held := self.some(a, b):
            key = self.joint_key_of(held) or JOINT_KEYS[b % 2]
            incarnation = self.actors.incarnations.get(held.place.number, 0)
            request_id = f"request-{next(self.actors.numbers):07d}"
            self.actors.requests.append((held.place, incarnation, request_id, key))
            self._ask(held.place, incarnation, request_id, joint_key=key, lost=b % 8 == 0, again=b % 3 == 0)

    def crash_together(self, a: int, b: int) -> None:
        """One fault of one engine ends all that a node is at work on; or so it says."""
        first = self.some(a, b)
        if first is None:
            return
        there = [it for it in self.actors.held[-4 * LATEST :] if it.place.number == first.place.number]
        all_of_them = list({it.attempt_id: it for it in [*there, first]}.values())
        reason = Reason.CRASHED if b % 2 else FAILURES[b // 2 % len(FAILURES)]
        named = tuple(it.attempt_id for it in all_of_them)
        for held in all_of_them[-4:]:
            report = FailAttempt(reason=reason, message="it went wrong", together=named)
            shared = self._is_shared(held, report)
            action = lambda held=held, report=report: fail(self.ctx, held.attempt_id, report)  # noqa: E731
            outcome = self.write(held, action, end=reason, again=b % 3 == 0)
            if self.exact:
                self.checker.look()  # one that died on the way was sent again, and the next is no part of it
            if shared is not None and outcome is not None and outcome is not DIED:
                assert self.checker.attempts[held.attempt_id].shared_fault == shared, f"{held} of {named}"

    def _is_shared(self, held: TrackedLease, report: FailAttempt) -> bool | None:
        """Whether this end is to be nobody's fault; None when that cannot be foretold, or it has ended."""
        if not self.exact or self.checker.attempts[held.attempt_id].ended_at_ms is not None:
            return None
        attempts = self.checker.attempts
        others = [attempts[it] for it in report.together if it != held.attempt_id]
        beside = any(it.node_id == attempts[held.attempt_id].node_id for it in others)
        return beside and self.joint_key_of(held) is not None and AMBIGUOUS_WHEN_SHARED[report.reason]

    def joint_key_of(self, held: TrackedLease) -> str | None:
        """The job's as it is now; None where that cannot be told."""
        return self.checker.jobs[held.job_id].joint_key if self.exact else None
