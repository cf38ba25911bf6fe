"""What holds of orders, pictures and their leases whenever nobody is in the middle of something."""

import json
from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from tests.contract.model.model_rig import ModelRig, Row, RowSnapshot

from giornata.domain.billing.money import cost_micro_usd
from giornata.domain.generation.picture import OPEN, ORDER_KINDS
from giornata.domain.jobs.job import TERMINAL
from giornata.domain.jobs.reasons import BLAME, Blame, Reason

Key = tuple[str, int]  # order, number
LASTING = tuple(f"({reason})" for reason in Reason if BLAME[reason] is Blame.JOB)
DAY_MS = 86_400_000
WAITING = frozenset({"queued", "paused"})


class PictureWitness:
    """Remembers what may never change again: results, the number of an order's pictures, and prices of leases."""

    def __init__(self, rig: ModelRig) -> None:
        self._rig = rig
        self._ended: dict[Key, Row] = {}
        self._pinned: set[str] = set()  # orders, at the last look; retention may have come before a pin since
        self._prices: dict[tuple[str, int], Any] = {}

    def check(self, seen: RowSnapshot) -> None:
        """Raises AssertionError when something is not as it must be."""
        orders = {row.id: row for row in seen.jobs if row.kind in ORDER_KINDS}
        jobs = {id_: row for id_, row in orders.items() if row.deleted_at_ms is None}
        leases = {row.id: row for row in seen.attempts if row.pictures}
        rows: dict[str, list[Row]] = defaultdict(list)
        # What is left of a deleted order goes with its deletion, which a loop finishes where a server died.
        pictures = [row for row in seen.pictures if row.order_id in jobs]
        for row in pictures:
            rows[row.order_id].append(row)
        known = [row for row in seen.picture_orders if row.order_id in jobs]
        assert rows.keys() == jobs.keys() == {row.order_id for row in known}
        for order in known:
            self._check_order(order, jobs[order.order_id], rows[order.order_id])
        bills: dict[str, list[Row]] = defaultdict(list)
        for bill in seen.ledger:
            bills[bill.attempt_id].append(bill)
        self._ended = {key: row for key, row in self._ended.items() if key[0] in jobs}
        for row in pictures:
            self._check_picture(row, leases, bills)
        self._check_ended(pictures, jobs)
        self._pinned = {id_ for id_, row in jobs.items() if row.pinned}
        held: dict[str, list[Row]] = defaultdict(list)
        for row in pictures:
            if row.state == "leased":
                held[row.lease].append(row)
        for lease in leases.values():
            self._check_lease(lease, held[lease.id], sorted(bills[lease.id], key=lambda bill: bill.seq), orders)

    def _check_order(self, order: Row, job: Row, rows: list[Row]) -> None:
        assert [row.number for row in rows] == list(range(order.pictures)), f"pictures of {order} are lost: {rows}"
        places = sorted(row.place for row in rows if row.place is not None)
        assert places == list(range(1, order.ended + 1)), f"places of {order}: {places}"
        states = {row.state for row in rows}
        is_over = job.state in TERMINAL
        assert bool(order.is_open) is not is_over, f"{order} of {job}"
        assert not (is_over and states.intersection(OPEN)), f"{job} ended before its pictures: {states}"
        assert is_over or "canceled" not in states, f"{job} goes on, and pictures of it are canceled"
        stray = "queued" if job.state == "paused" else "paused"
        assert stray not in states, f"{job} has pictures that are {stray}"
        if job.state in {"succeeded", "failed"}:
            result = json.loads(job.result) if isinstance(job.result, str) else job.result
            counts = [sum(row.state == state for row in rows) for state in ("succeeded", "failed")]
            assert [result["succeeded"], result["failed"]] == counts, f"{job}, but {counts}"
            assert (job.state == "succeeded") is bool(counts[0]), f"{job}, but {counts}"
            assert "canceled" not in states, f"{job} ended before its last pictures"

    def _check_picture(self, row: Row, leases: Mapping[str, Row], bills: Mapping[str, list[Row]]) -> None:
        policy = self._rig.ctx.policy
        assert (row.place is not None) is (row.state in {"succeeded", "failed"}), row
        if row.state in OPEN:
            assert row.sha256 is None, f"{row} has a result, and goes on"
            spent = row.tries >= policy.max_crashed_machines or row.fruitless >= policy.max_fruitless
            assert not spent, f"{row} goes on after all of its tries"
        if row.state in WAITING:
            assert row.lease is None, f"{row} waits, and somebody has it"
        elif row.state == "leased":
            assert leases[row.lease].ended_at_ms is None, f"{row} hangs on a lease that is over: {leases[row.lease]}"
        elif row.state == "succeeded" and row.sha256 is None:
            assert (row.order_id, row.number) in self._ended, f"{row} never had bytes"
        elif row.state == "succeeded":
            assert row.order_id in {bill.job_id for bill in bills[row.lease]}, f"{row} came of a lease without it"
            key = f"pictures/{row.project_id}/{row.lease}/{row.sha256}"
            kept = self._rig.blobs.objects.get(key)
            assert kept is not None, f"the bytes of {row} are gone"
            assert (kept.sha256, len(kept.data)) == (row.sha256, row.size_bytes), row
        elif row.state == "failed":
            tried = row.tries >= policy.max_crashed_machines or row.fruitless >= policy.max_fruitless
            assert tried or any(reason in row.error for reason in LASTING), f"{row} failed before its time"

    def _check_ended(self, rows: list[Row], orders: Mapping[str, Row]) -> None:
        """A result stands for ever, and so does every other end. Retention may take the bytes of a result."""
        now = {(row.order_id, row.number): row for row in rows if row.state not in OPEN}
        for key, row in self._ended.items():
            taken = row._replace(sha256=None, size_bytes=None)
            kept = now.get(key) == row or (now.get(key) == taken and self._may_lose(orders[key[0]]))
            assert kept, f"a picture that had ended was changed:\n{row}\n{now.get(key)}"
        self._ended = now

    def _may_lose(self, order: Row) -> bool:
        """Whether the order ended before the day for which its project keeps pictures, and nobody pinned it."""
        if order.state not in TERMINAL or order.id in self._pinned or order.project_id not in self._rig.retained:
            return False
        return self._rig.is_set_back or order.ended_at_ms < self._rig.clock.now_ms() - DAY_MS

    def _check_lease(self, lease: Row, held: list[Row], bills: list[Row], orders: Mapping[str, Row]) -> None:
        said = f"{lease}\n{bills}"
        assert len(held) <= lease.pictures, f"{held} of {lease}"
        assert len({row.batch_key for row in held}) <= 1, f"{held} of {lease}"
        assert not lease.lapsed, f"{lease} lapsed, and did not end"
        assert [bill.seq for bill in bills] == list(range(len(bills))), said
        assert len({bill.job_id for bill in bills}) == len(bills) > 0, said
        assert sum(bill.price_micro_usd_per_hour for bill in bills) == lease.price_micro_usd_per_hour, said
        for bill in bills:
            price, order = bill.price_micro_usd_per_hour, orders[bill.job_id]
            cost = cost_micro_usd(price_micro_usd_per_hour=price, billed_ms=bill.to_ms - bill.from_ms)
            assert (bill.amount_micro_usd, bill.project_id) == (cost, order.project_id), said
            known = self._prices.setdefault((lease.id, bill.seq), (bill.job_id, price, lease.started_at_ms))
            assert known == (bill.job_id, price, bill.from_ms), said
        signs = {lease.renewed_at_ms} | ({lease.ended_at_ms} if lease.ended_at_ms is not None else set())
        ends = {bill.to_ms for bill in bills}
        assert len(ends) == 1, said
        assert ends <= signs, said
        if len(held) == lease.pictures:
            _check_parts(lease, held, bills)


def _check_parts(lease: Row, held: list[Row], bills: list[Row]) -> None:
    """Each order pays for its pixel-steps, to less than a micro-dollar an hour."""
    whole = sum(row.pixel_steps for row in held)
    for bill in bills:
        steps = sum(row.pixel_steps for row in held if row.order_id == bill.job_id)
        part = Fraction(lease.price_micro_usd_per_hour * steps, whole)
        assert abs(bill.price_micro_usd_per_hour - part) <= 1, f"{bill} of {lease} is for {steps} of {whole}"
