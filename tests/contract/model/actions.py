"""What can happen to the rig besides what nodes and users send: loops, time, and death."""

from tests.contract.model.calls import DIED, TrackedLease
from tests.contract.model.model_rig import PLACES
from tests.contract.model.user_actions import UserActions

from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.attempts.ending.lift_bans import lift_bans
from giornata.control.fleets.reap import reap
from giornata.control.fleets.stragglers import order_release
from giornata.control.jobs.stop_job import expire_deadlines
from giornata.control.storage.collect import collect
from giornata.domain.jobs.attempt import CLOCKS_AGREE_MS
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.project.admin import ROOT_PROJECT

HOUR_S, DAY_S = 3600, 86_400

# What has to happen more often for the rest to be interesting weighs more.
WEIGHTS = {
    "submit": 6,
    "submit_again": 2,
    "claim": 14,
    "claim_again": 4,
    "claim_together": 3,
    "claim_companion": 8,
    "replace_process": 1,
    "beat": 10,
    "beat_together": 3,
    "metrics": 1,
    "log": 1,
    "notice": 1,
    "commit": 14,
    "commit_late": 2,
    "upload": 1,
    "put_late": 2,
    "reject": 4,
    "lose": 2,
    "lose_and_send_again": 2,
    "artifact": 4,
    "cache": 1,
    "complete": 4,
    "fail": 4,
    "crash": 3,
    "crash_again": 3,
    "crash_together": 4,
    "release": 3,
    "again": 5,
    "cancel": 2,
    "retry": 3,
    "budget": 3,
    "project_budget": 1,
    "settle": 2,
    "ceiling": 2,
    "continue_one": 2,
    "submit_sweep": 3,
    "finish_one_of_sweep": 4,
    "fill_budget_of_sweep": 1,
    "settle_sweeps": 5,
    "budget_of_sweep": 2,
    "cancel_sweep": 1,
    "delete_sweep": 1,
    "look_at": 1,
    "send_pictures": 1,
    "delete_one": 4,
    "delete_shared": 5,
    "keep_and_age": 2,
    "pin_running": 3,
    "finish_deletions": 1,
    "delete_dataset": 2,
    "retain": 4,
    "pin": 3,
    "lapse": 6,
    "reap": 3,
    "lift_bans": 3,
    "find_slow": 3,
    "disobey": 1,
    "expire": 3,
    "collect": 2,
    "short_wait": 5,
    "long_wait": 5,
    "very_long_wait": 1,
    "clock_back": 2,
    "mute": 1,
    "die": 8,
}
AUDIT_WEIGHTS = {
    "submit": 6,
    "claim": 16,
    "commit_audited": 18,
    "settle_audits": 14,
    "run_audit": 18,
    "refute": 6,
    "complete": 3,
    "finish_deletions": 1,
}
ACTIONS = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
PICTURE_WEIGHTS = {
    "place_order": 8,
    "place_grid": 2,
    "place_annotations": 2,
    "place_by_annotations": 5,
    "claim_annotations": 8,
    "claim_by_models": 5,
    "annotate": 10,
    "collect_annotations": 3,
    "cancel_order": 2,
    "delete_order": 3,
    "retain": 2,
    "budget_of_order": 2,
    "tell_orders": 6,
    "claim_pictures": 20,
    "claim_pictures_again": 3,
    "draw": 22,
    "steal": 4,
    "lie": 2,
    "fail_picture": 4,
    "beat_pictures": 4,
    "end_lease": 4,
    "crash_lease": 10,
    "again": 6,
    "lapse": 6,
    "expire": 2,
    "collect": 2,
    "settle": 1,
    "short_wait": 8,
    "long_wait": 3,
    "very_long_wait": 1,
    "clock_back": 1,
    "die": 6,
}
# Pictures beside jobs: every fourth action is one of the jobs.
PICTURE_ACTIONS = [name for name, weight in PICTURE_WEIGHTS.items() for _ in range(weight)]
PICTURE_ACTIONS += ACTIONS[:: 4 * len(ACTIONS) // len(PICTURE_ACTIONS)]
# Audits beside jobs: every second action is one of the jobs.
AUDIT_ACTIONS = [name for name, weight in AUDIT_WEIGHTS.items() for _ in range(weight)]
AUDIT_ACTIONS += ACTIONS[:: 2 * len(ACTIONS) // len(AUDIT_ACTIONS)]
Step = tuple[str, int, int]


class Actions(UserActions):
    """What happens one at a time."""

    def do(self, step: Step) -> None:
        name, a, b = step
        with self.actors.guard:
            self.actors.actions[name] += 1
        getattr(self, name)(a, b)
        if self.exact:
            self.checker.look()

    # ---- loops

    def reap(self, a: int, b: int) -> None:
        """Machines whose quarantine is over get another chance: no fleet is there to replace any."""
        self.call(lambda: reap(self.ctx).given_another_chance, again=True)

    def lift_bans(self, a: int, b: int) -> None:
        """Jobs go back to machines that failed them, where no other machine is heard of."""
        preferred = self._preferred() if self.exact else {}
        self.call(lambda: lift_bans(self.ctx).lifted, again=True)
        if self.exact:
            left = {(row.job_id, row.machine_id) for row in self.checker.look().bans}
            assert left >= set(preferred), f"lifted although others could take the job: {set(preferred) - left}"

    def _preferred(self) -> dict[tuple[str, str], str]:
        """(job, machine) of the bans that another machine, which was heard of lately, makes worth keeping."""
        now, since_ms = self.checker.now, self.rig.clock.now_ms() - self.ctx.policy.node_gone_after_s * 1000
        banned = {(row.job_id, row.machine_id) for row in now.bans}
        shut = {(row.machine_id, row.kind) for row in now.machines if row.state == "quarantined"}
        heard = {row.id for row in now.nodes if row.last_seen_at_ms >= since_ms}
        kept: dict[tuple[str, str], str] = {}
        for job in (row for row in now.jobs if row.state == "queued"):
            for place in PLACES:
                process = place.process(self.actors.incarnations.get(place.number, 0))
                mine = job.only_machine_id in {None, place.machine}
                able = mine and job.kind in place.kinds and place.project in {ROOT_PROJECT, job.project_id}
                free = (job.id, place.machine) not in banned and (place.machine, job.kind) not in shut
                if able and free and process.node_id in heard:
                    kept |= {each: place.machine for each in banned if each[0] == job.id}
        return kept

    def find_slow(self, a: int, b: int) -> None:
        """A machine is too slow, and its node is to hear of it."""
        if held := self.some(a, b):
            self._order_to_go(held, again=b % 2 == 0)

    def disobey(self, a: int, b: int) -> None:
        """A node is told to give its job back, beats on in good time until its grace is over, and once more."""
        if held := self.some(a, b):
            self._order_to_go(held, again=False)
            pause_s = self.ctx.policy.lease_s - 1
            for _ in range(1 + int(self.ctx.policy.stop_grace_s / pause_s)):
                self.beat_of(held, b)
                if self.exact:
                    self.checker.look()
                self.rig.clock.advance_s(pause_s)
            self.beat_of(held, b)

    def _order_to_go(self, held: TrackedLease, *, again: bool) -> None:
        order = {"reason": Reason.TOO_SLOW, "notice": {"name": "too-slow"}}
        self.call(lambda: order_release(self.ctx, held.attempt_id, **order), again=again)

    def lapse(self, a: int, b: int) -> None:
        outcome = self.call(lambda: lapse_leases(self.ctx), again=True)
        if outcome is not DIED and self.exact:
            longest_ms = self.rig.clock.now_ms() + CLOCKS_AGREE_MS + self.ctx.policy.lease_s * 1000
            live = [row for row in self.checker.look().attempts if row.ended_at_ms is None and not row.lapsed]
            assert all(row.lease_expires_at_ms <= longest_ms for row in live), "a lease of more than one lease"

    def expire(self, a: int, b: int) -> None:
        self.call(lambda: expire_deadlines(self.ctx), again=True)

    def collect(self, a: int, b: int) -> None:
        self.call(lambda: bool(collect(self.ctx)), again=False)

    # ---- time and death

    def short_wait(self, a: int, b: int) -> None:
        self.rig.clock.advance_s(b / 2)

    def long_wait(self, a: int, b: int) -> None:
        self.rig.clock.advance_s(self.ctx.policy.lease_s + 1 + b)

    def very_long_wait(self, a: int, b: int) -> None:
        self.rig.clock.advance_s(DAY_S + b)

    def clock_back(self, a: int, b: int) -> None:
        """Somebody set the server's clock."""
        self.actors.latest_ms = max(self.actors.latest_ms, self.rig.clock.now_ms())
        self.rig.clock.advance_s(-HOUR_S * (1 + b) / 16)
        self.rig.is_set_back = True

    def mute(self, a: int, b: int) -> None:
        """A partition: for a while nothing that this node sends arrives."""
        self.actors.muted_until[a % len(PLACES)] = self.actors.operations + b

    def die(self, a: int, b: int) -> None:
        """The server will die in the middle of something, soon."""
        self.dying = a
