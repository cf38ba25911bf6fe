"""Random schedules of everything that can happen, against the real store: the invariants hold after every step."""

import contextlib
from collections.abc import Callable

import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.fixtures.work import Workshop

from giornata.control.commit_checkpoint import reject_checkpoint
from giornata.control.complete import complete
from giornata.control.expire import expire_deadlines
from giornata.control.fail import fail
from giornata.control.heartbeat import heartbeat
from giornata.control.lapse import lapse_leases
from giornata.control.release import release
from giornata.control.stop_job import stop_job
from giornata.domain.errors import Conflict, LeaseLost, NotFound
from giornata.domain.job import TERMINAL, JobEvent
from giornata.domain.money import cost_micro_usd
from giornata.domain.reasons import REPORTABLE_FAILURES
from giornata.protocol.work import CompleteAttempt, FailAttempt, Heartbeat, Lease, ReleaseAttempt
from giornata.store import schema

JOBS, NODES = 3, 3
FAILURES = sorted(REPORTABLE_FAILURES)

# What has to happen more often for the rest to be interesting comes more than once.
DEEDS = [
    "claim",
    "claim",
    "claim again",
    "beat",
    "beat",
    "commit",
    "reject",
    "complete",
    "fail",
    "release",
    "lapse",
    "lapse",
    "expire",
    "cancel",
    "short wait",
    "long wait",
    "long wait",
]
STEP = st.tuples(st.sampled_from(DEEDS), st.integers(0, 7))


class Schedule:
    """Carries out steps, and remembers what no step may undo."""

    def __init__(self, shop: Workshop) -> None:
        self.shop = shop
        self.leases: list[tuple[int, str, Lease]] = []  # node, request id, lease; the dead ones stay in
        self.states: dict[str, str] = {}

    def do(self, name: str, number: int) -> None:
        deeds: dict[str, Callable[[int], object]] = {
            "claim": self.claim,
            "claim again": self.claim_again,
            "beat": lambda n: self.write(n, lambda it: heartbeat(self.shop.ctx, it, Heartbeat(step=n))),
            "commit": self.commit,
            "reject": lambda n: self.write(n, lambda it: reject_checkpoint(self.shop.ctx, it, 10 * n, "")),
            "complete": lambda n: self.write(n, lambda it: complete(self.shop.ctx, it, CompleteAttempt(step=n))),
            "fail": lambda n: self.write(
                n, lambda it: fail(self.shop.ctx, it, FailAttempt(reason=FAILURES[n], message="m"))
            ),
            "release": lambda n: self.write(n, lambda it: release(self.shop.ctx, it, ReleaseAttempt())),
            "lapse": lambda _: lapse_leases(self.shop.ctx),
            "expire": lambda _: expire_deadlines(self.shop.ctx),
            "cancel": self.cancel,
            "short wait": lambda n: self.shop.clock.advance_s(10 * n),
            "long wait": lambda n: self.shop.clock.advance_s(91 + n),
        }
        deeds[name](number)

    def claim(self, number: int) -> None:
        node, request_id = number % NODES + 1, f"request-{len(self.leases):04d}"
        lease = self.shop.claim(node, request_id=request_id).lease
        if lease is not None:
            assert not self.shop.rows(schema.bans, job_id=lease.job_id, machine_id=f"machine-{node}")
            self.leases.append((node, request_id, lease))

    def claim_again(self, number: int) -> None:
        if self.leases:
            node, request_id, lease = self.leases[number % len(self.leases)]
            alive = self.shop.attempt(lease.attempt_id)["ended_at_ms"] is None
            again = self.shop.claim(node, request_id=request_id).lease
            assert (again is not None) is alive
            assert again is None or (again.attempt_id, again.token) == (lease.attempt_id, lease.token)

    def write(self, number: int, deed: Callable[[str], object]) -> None:
        """A write of some node that once had a lease. An ended attempt changes nothing."""
        if not self.leases:
            return
        attempt_id = self.leases[-1 - number % len(self.leases)][2].attempt_id
        ended = self.shop.attempt(attempt_id)["ended_at_ms"] is not None
        before = self.shop.whole_database() if ended else {}
        with contextlib.suppress(LeaseLost, NotFound):
            deed(attempt_id)
        assert not ended or self.shop.whole_database() == before

    def commit(self, number: int) -> None:
        if self.leases:
            lease = self.leases[-1 - number % len(self.leases)][2]
            with contextlib.suppress(Conflict):
                self.shop.checkpoint(lease, 10 * number, f"{lease.job_id} {number}".encode())

    def cancel(self, number: int) -> None:
        with contextlib.suppress(Conflict), self.shop.store.begin() as tx:
            job = tx.jobs.lock(f"job_{number % 8 + 1:06d}")  # some of them do not exist
            if job is not None:
                stop_job(tx, job, JobEvent.CANCEL, at_ms=self.shop.clock.now_ms(), message="", data={})

    def check(self) -> None:
        for job in self.shop.rows(schema.jobs):
            was = self.states.get(job["id"])
            assert was not in TERMINAL or job["state"] == was
            self.states[job["id"]] = job["state"]
            tries = self.shop.rows(schema.attempts, job_id=job["id"])
            alive = [attempt for attempt in tries if attempt["ended_at_ms"] is None]
            holders = [attempt["id"] for attempt in alive if not attempt["lapsed"]]
            assert len(alive) <= (job["state"] not in TERMINAL)
            assert holders == ([job["attempt_id"]] if job["state"] == "running" else [])
            assert sorted(attempt["number"] for attempt in tries) == list(range(1, job["attempt_count"] + 1))
            usable = [row["step"] for row in self.shop.rows(schema.checkpoints, job_id=job["id"], rejected=False)]
            assert job["committed_step"] == max(usable, default=0)
            told = self.shop.events(job["id"])
            assert told.count("attempt.started") == len(tries)
            assert told.count("attempt.ended") == len(tries) - len(alive)
            assert sum(event.startswith("job.") and event != "job.requeued" for event in told) == (
                job["state"] in TERMINAL
            )
        self.check_money()

    def check_money(self) -> None:
        attempts = {row["id"]: row for row in self.shop.rows(schema.attempts)}
        end_ms: dict[str, int] = {}
        for bill in self.shop.rows(schema.ledger):
            attempt = attempts[bill["attempt_id"]]
            assert bill["from_ms"] >= end_ms.get(attempt["id"], attempt["started_at_ms"])
            assert bill["to_ms"] <= (attempt["ended_at_ms"] or self.shop.clock.now_ms())
            assert bill["amount_micro_usd"] == cost_micro_usd(
                price_micro_usd_per_hour=attempt["price_micro_usd_per_hour"],
                billed_ms=bill["to_ms"] - bill["from_ms"],
            )
            end_ms[attempt["id"]] = bill["to_ms"]
        assert set(end_ms) == set(attempts)

    def finish(self) -> None:
        """With machines that nobody has banned every job comes to an end."""
        self.shop.clock.advance_s(1_000)
        lapse_leases(self.shop.ctx)
        for number in range(100, 100 + 2 * JOBS):
            reply = self.shop.claim(number)
            if reply.lease is not None:
                complete(self.shop.ctx, reply.lease.attempt_id, CompleteAttempt(step=1))
        assert {job["state"] for job in self.shop.rows(schema.jobs)} <= TERMINAL


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(
    steps=[("claim", 1), ("long wait", 0), ("lapse", 0), ("beat", 0), ("commit", 3), ("long wait", 0), ("lapse", 0)]
)
@example(
    steps=[("claim", 1), ("commit", 3), ("long wait", 0), ("lapse", 0), ("claim", 2), ("reject", 3), ("fail", 0)]
)
@example(steps=[("claim", 1), ("fail", 2), ("claim", 2), ("fail", 2), ("claim", 0), ("fail", 2), ("claim again", 0)])
@given(steps=st.lists(STEP, min_size=10, max_size=40))
def test_no_schedule_breaks_the_house(shop: Workshop, steps: list[tuple[str, int]]) -> None:
    with shop.store.begin() as tx:
        for table in reversed(schema.metadata.sorted_tables):
            if table.name not in {"installation", "projects", "keys"}:
                tx.connection.execute(sa.delete(table))
    for number in range(1, JOBS + 1):
        deadline_at_ms = shop.clock.now_ms() + 600_000 if number == 1 else None
        shop.add_job(id=f"job_{number:06d}", deadline_at_ms=deadline_at_ms)
    schedule = Schedule(shop)
    for name, number in steps:
        schedule.do(name, number)
        schedule.check()
    schedule.finish()
    schedule.check()
