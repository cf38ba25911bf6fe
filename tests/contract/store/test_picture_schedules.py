"""Orders and leases of pictures in schedules by chance: no picture is lost, none gets two results.

Nodes claim, upload, report, repeat, steal, crash, fall silent; owners cancel; the clock runs. The database is looked
at after each step. In the end nodes that do their work finish every order.
"""

import contextlib
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.fixtures.pictures import Studio, generate_spec
from tests.fixtures.work import Workshop

from giornata.control.attempts.complete import complete
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.attempts.lapse import lapse_leases
from giornata.control.attempts.reported_ends import fail, release
from giornata.control.caller import Caller
from giornata.control.jobs.stop_job import cancel
from giornata.control.pictures.settle_order import settle_orders
from giornata.domain.errors import BlobMissing, IllegalTransition, LeaseLost
from giornata.domain.job import TERMINAL
from giornata.domain.picture import OPEN, picture_key
from giornata.domain.reasons import Reason
from giornata.protocol.admin import ROOT_PROJECT, Scope
from giornata.protocol.pictures import PictureLease
from giornata.protocol.work import CompleteAttempt, FailAttempt, Heartbeat, ReleaseAttempt
from giornata.store import schema

STEPS = 60
NODES = 4
CAUSES = (Reason.CRASHED, Reason.CRASHED, Reason.NODE_DISK, Reason.NODE_TOO_SMALL)
PROJECTS = (ROOT_PROJECT, "ann")
Row = Mapping[str, Any]


class Schedule:
    """Draws what happens next, and remembers what must stay."""

    def __init__(self, studio: Studio, dice: random.Random) -> None:
        self.studio, self.dice = studio, dice
        self.leases: list[PictureLease] = []
        self.orders: list[tuple[str, str]] = []
        self.results: dict[tuple[str, int], tuple[str, str, str | None]] = {}

    def step(self) -> None:
        """One thing happens; who is told that its lease is over takes it."""
        deeds: list[Callable[[], object]] = [
            *(self.place, self.claim, self.claim, self.report, self.report, self.report, self.steal, self.beat),
            *(self.end, self.fall_silent, self.cancel, self.settle, self.forget_to_upload),
        ]
        with contextlib.suppress(LeaseLost, BlobMissing, IllegalTransition):
            self.dice.choice(deeds)()
        self.look()

    def place(self) -> None:
        spec = generate_spec(self.dice.randint(1, 6), side_px=self.dice.choice((512, 768)))
        project_id = self.dice.choice(PROJECTS)
        order_id = self.studio.order(spec=spec, project_id=project_id, priority=self.dice.randint(0, 1))
        self.orders.append((order_id, project_id))

    def claim(self) -> None:
        reply = self.studio.claim(self.dice.randint(1, NODES), most=self.dice.choice((1, 2, 4)))
        if reply.picture_lease is not None:
            self.leases.append(reply.picture_lease)

    def report(self) -> None:
        if self.leases:
            lease = self.dice.choice(self.leases)
            some = self.dice.sample(lease.pictures, self.dice.randint(1, len(lease.pictures)))
            broken = [(some.pop(), self.dice.choice(CAUSES))] if self.dice.random() < 0.1 else []
            done = [self.studio.upload(lease, each) for each in some]
            self.studio.report(lease, done, broken, complete=self.dice.random() < 0.2)

    def steal(self) -> None:
        if len(self.leases) > 1:
            mine, other = self.dice.sample(self.leases, 2)
            self.studio.report(mine, [self.studio.upload(mine, other.pictures[0])])

    def forget_to_upload(self) -> None:
        if self.leases:
            lease = self.dice.choice(self.leases)
            drawn = self.studio.upload(lease, lease.pictures[0])
            self.studio.report(lease, [drawn.model_copy(update={"sha256": "0" * 64})])

    def beat(self) -> None:
        if self.leases:
            heartbeat(self.studio.ctx, self.dice.choice(self.leases).attempt_id, Heartbeat())

    def end(self) -> None:
        if not self.leases:
            return
        attempt_id, ctx = self.dice.choice(self.leases).attempt_id, self.studio.ctx
        how = self.dice.randint(0, 2)
        if how == 0:
            complete(ctx, attempt_id, CompleteAttempt(step=0))
        elif how == 1:
            release(ctx, attempt_id, ReleaseAttempt())
        else:
            fail(ctx, attempt_id, FailAttempt(reason=self.dice.choice(CAUSES), message="it died"))

    def fall_silent(self) -> None:
        self.studio.shop.clock.advance_s(self.dice.choice((1, 40, 100)))
        lapse_leases(self.studio.ctx)

    def cancel(self) -> None:
        if self.orders and self.dice.random() < 0.3:
            order_id, project_id = self.dice.choice(self.orders)
            cancel(self.studio.ctx, Caller(project_id=project_id, scope=Scope.MEMBER, key_id="key_owner"), order_id)

    def settle(self) -> None:
        self.studio.shop.clock.advance_s(2)
        settle_orders(self.studio.ctx)

    def look(self) -> None:
        """What holds at any moment."""
        shop = self.studio.shop
        jobs = {row["id"]: row for row in shop.rows(schema.jobs)}
        attempts = {row["id"]: row for row in shop.rows(schema.attempts)}
        found = {}
        for row in shop.rows(schema.pictures):
            self._look_at(row, jobs[row["order_id"]], attempts)
            if row["state"] == "succeeded":
                found[row["order_id"], row["number"]] = (row["lease"], row["sha256"], row["place"])
        assert self.results.items() <= found.items(), "a result that stood is gone or another"
        assert len({(key[0], place) for key, (_, _, place) in found.items()}) == len(found), "a place is had twice"
        self.results = found
        self._look_at_bills(attempts)

    def _look_at(self, row: Row, job: Row, attempts: Mapping[str, Row]) -> None:
        if row["state"] == "leased":
            assert attempts[row["lease"]]["ended_at_ms"] is None, "a picture hangs on a lease that is over"
        if row["state"] == "succeeded":
            key = picture_key(row["project_id"], row["lease"], row["sha256"])
            assert self.studio.ctx.blobs.size(key) == row["size_bytes"]
        if job["state"] in TERMINAL:
            assert row["state"] not in OPEN, "an order ended before its picture"

    def _look_at_bills(self, attempts: Mapping[str, Row]) -> None:
        prices: dict[str, int] = {}
        for bill in self.studio.shop.rows(schema.ledger):
            of = bill["attempt_id"]
            prices[of] = prices.get(of, 0) + bill["price_micro_usd_per_hour"]
        assert prices == {name: row["price_micro_usd_per_hour"] for name, row in attempts.items()}

    def finish(self) -> None:
        """Fresh nodes draw all that is left, and every order ends."""
        shop = self.studio.shop
        for node in range(100, 200):
            shop.clock.advance_s(700)
            lapse_leases(self.studio.ctx)
            settle_orders(self.studio.ctx)
            reply = self.studio.claim(node)
            if reply.picture_lease is not None:
                self.studio.draw(reply.picture_lease)
                complete(self.studio.ctx, reply.picture_lease.attempt_id, CompleteAttempt(step=0))
                self.look()
            elif not any(row["state"] in OPEN for row in shop.rows(schema.pictures)):
                break
        left = [row["id"] for row in shop.rows(schema.jobs) if row["state"] not in TERMINAL]
        assert not left, "an order never ends"


@pytest.mark.parametrize("seed", range(3))
def test_in_any_schedule_no_picture_is_lost_and_none_has_two_results(shop: Workshop, seed: int) -> None:
    shop.add_project("ann")
    schedule = Schedule(Studio(shop), random.Random(seed))
    schedule.place()
    for _ in range(STEPS):
        schedule.step()
    schedule.finish()
    assert schedule.results
