"""Who was on a node with whom, by the times of all attempts, and what each has to pay of what the node costs."""

from collections import defaultdict
from collections.abc import Collection
from fractions import Fraction
from itertools import pairwise

from tests.contract.model.model_rig import PROJECTS, ModelRig, Row, RowSnapshot

from giornata.domain.billing.money import MS_PER_HOUR
from giornata.domain.generation.picture import ORDER_KINDS


def cost_of_job(seen: RowSnapshot, job_id: str) -> int:
    """What the job has to cost, in micro-dollars; worked out a second time, moment by moment."""
    return costs_of(seen, {job_id}, paid_by_owner=True)[job_id]


def costs_of(seen: RowSnapshot, job_ids: Collection[str], *, paid_by_owner: bool = False) -> dict[str, int]:
    """What the jobs have to cost; `paid_by_owner` leaves out what the platform pays for."""
    owners = {row.id: row.project_id for row in seen.jobs}
    bills, attempts = defaultdict(list), {row.id: row for row in seen.attempts}
    for bill in seen.ledger:
        bills[bill.attempt_id].append(bill)
    on_node = defaultdict(list)
    for row in seen.attempts:
        on_node[row.node_id].append(row)
    costs = dict.fromkeys(job_ids, 0)
    for bill in seen.ledger:
        if bill.job_id in costs and (not paid_by_owner or bill.project_id == owners[bill.job_id]):
            mine = attempts[bill.attempt_id]
            lives = [_life(other, bills[other.id]) for other in on_node[mine.node_id] if _met(mine, other)]
            if mine.pictures:
                costs[bill.job_id] += _part(mine, bill, bills[mine.id], lives)
            else:
                costs[bill.job_id] += _share(bill, bill.price_micro_usd_per_hour, lives)
    return costs


def _part(lease: Row, bill: Row, bills: list[Row], lives: list[list[tuple[int, float]]]) -> int:
    """An order's part of a lease: alone what its row says, beside others of the lease's share, by cumulative sums."""
    if not lives:
        return int(bill.amount_micro_usd)
    prices = [row.price_micro_usd_per_hour for row in sorted(bills, key=lambda row: row.seq)]
    price, share = lease.price_micro_usd_per_hour, _share(bill, lease.price_micro_usd_per_hour, lives)
    if not price:
        return 0
    before, after = (
        int(Fraction(share * sum(prices[:count]), price) + Fraction(1, 2)) for count in (bill.seq, bill.seq + 1)
    )
    return after - before


def check_costs(seen: RowSnapshot, rig: ModelRig, *, steady: bool) -> None:
    """Each job pays its shares; and all jobs what all nodes cost, unless somebody set the clock back."""
    paid: dict[str, int] = defaultdict(int)
    with rig.store.read() as tx:
        for project in PROJECTS:
            ids = [row.id for row in seen.jobs if row.project_id == project]
            for row in tx.job_reads.attempts(ids, project_id=project):
                paid[row.job_id] += row.amount_micro_usd
        paid |= tx.spending.of_jobs([row.id for row in seen.jobs if row.kind in ORDER_KINDS])
    costs = costs_of(seen, paid.keys(), paid_by_owner=True)
    assert paid == costs, {job_id: (paid[job_id], cost) for job_id, cost in costs.items() if paid[job_id] != cost}
    if not steady:
        return
    nodes: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    of = {row.id: row for row in seen.attempts}
    for bill in seen.ledger:
        attempt = of[bill.attempt_id]
        nodes[attempt.node_id, attempt.price_micro_usd_per_hour].append((bill.from_ms, bill.to_ms))
    due = sum(Fraction(price * _covered_ms(spans), MS_PER_HOUR) for (_, price), spans in nodes.items())
    whole = sum(costs_of(seen, paid.keys()).values())
    assert abs(whole - due) <= Fraction(len(seen.ledger), 2), f"{whole} was paid, {float(due)} was due"


def _met(mine: Row, other: Row) -> bool:
    """Two attempts of one node, neither of which had ended when the other began."""

    def was_there(one: Row, at_ms: int) -> bool:
        return one.ended_at_ms is None or one.ended_at_ms > at_ms

    there = was_there(mine, other.started_at_ms) and was_there(other, mine.started_at_ms)
    return mine.id != other.id and there


def _life(attempt: Row, bills: list[Row]) -> list[tuple[int, float]]:
    in_order = sorted(bills, key=lambda row: row.seq)
    spans: list[tuple[int, float]] = [(row.from_ms, row.to_ms) for row in in_order]
    runs = attempt.ended_at_ms is None and not attempt.lapsed
    return [*spans[:-1], (spans[-1][0], float("inf"))] if runs else spans


def _share(bill: Row, price: int, lives: list[list[tuple[int, float]]]) -> int:
    """Between two moments at which anything changes, as many pay as there are."""
    ends = {at for life in lives for span in life for at in span if bill.from_ms < at < bill.to_ms}
    paid = Fraction(0)
    for start, end in pairwise(sorted({bill.from_ms, bill.to_ms} | {int(at) for at in ends})):
        payers = 1 + sum(any(first <= start < last for first, last in life) for life in lives)
        paid += Fraction(price * (end - start), payers)
    return int(paid / MS_PER_HOUR + Fraction(1, 2))


def _covered_ms(spans: list[tuple[int, int]]) -> int:
    """How much time lies in any of them."""
    covered, until = 0, 0
    for start, end in sorted(spans):
        covered += max(0, end - max(start, until))
        until = max(until, end)
    return covered
