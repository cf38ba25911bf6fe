"""Who was on a node with whom, by the events alone, and what each has to pay of what the node costs."""

from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any

from tests.contract.model.house import PROJECTS, House, Row, Snapshot
from tests.contract.model.story import Story

from giornata.domain.money import MS_PER_HOUR

Name = tuple[str, int]  # a job, and the attempt's number


class Shares:
    """Worked out a second time, moment by moment."""

    def __init__(self) -> None:
        self._beside: dict[Name, set[Name]] = defaultdict(set)
        self._alive: dict[str, set[Name]] = defaultdict(set)  # by node

    def began(self, stories: Mapping[str, Story], event: Any) -> None:
        """Told of a start: whoever lives on the node is beside it."""
        it: Name = (event.job_id, event.attempt_number)
        node = stories[it[0]].tries[it[1]].node_id
        alive = {name for name in self._alive[node] if stories[name[0]].tries[name[1]].reason is None}
        for other in alive:
            self._beside[it].add(other)
            self._beside[other].add(it)
        self._alive[node] = {*alive, it}

    def of_job(self, seen: Snapshot, job_id: str) -> int:
        """What the job has to cost, in micro-dollars."""
        attempts = {(row.job_id, row.number): row for row in seen.attempts}
        lives = {name: _life(row, seen) for name, row in attempts.items()}
        bills = [row for row in seen.ledger if row.job_id == job_id]
        numbers = {row.id: name for name, row in attempts.items()}
        return sum(_share(bill, [lives[name] for name in self._beside[numbers[bill.attempt_id]]]) for bill in bills)

    def check_nodes(self, seen: Snapshot, house: House) -> None:
        """What all jobs pay is what all nodes cost."""
        paid = 0
        with house.store.read() as tx:
            for project in PROJECTS:
                ids = [row.id for row in seen.jobs if row.project_id == project]
                paid += sum(row.amount_micro_usd for row in tx.job_reads.attempts(ids, project_id=project))
        nodes: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        of = {row.id: row.node_id for row in seen.attempts}
        for bill in seen.ledger:
            nodes[of[bill.attempt_id], bill.price_micro_usd_per_hour].append((bill.from_ms, bill.to_ms))
        due = sum(Fraction(price * _covered_ms(spans), MS_PER_HOUR) for (_, price), spans in nodes.items())
        assert abs(paid - due) <= Fraction(len(seen.ledger), 2), f"{paid} was paid, {float(due)} was due"


def _life(attempt: Row, seen: Snapshot) -> list[tuple[int, float]]:
    bills = sorted((row for row in seen.ledger if row.attempt_id == attempt.id), key=lambda row: row.seq)
    spans: list[tuple[int, float]] = [(row.from_ms, row.to_ms) for row in bills]
    runs = attempt.ended_at_ms is None and not attempt.lapsed
    return [*spans[:-1], (spans[-1][0], float("inf"))] if runs else spans


def _share(bill: Row, lives: list[list[tuple[int, float]]]) -> int:
    """Between two moments at which anything changes, as many pay as there are."""
    ends = {at for life in lives for span in life for at in span if bill.from_ms < at < bill.to_ms}
    paid = Fraction(0)
    for start, end in pairwise(sorted({bill.from_ms, bill.to_ms} | {int(at) for at in ends})):
        payers = 1 + sum(any(first <= start < last for first, last in life) for life in lives)
        paid += Fraction(bill.price_micro_usd_per_hour * (end - start), payers)
    return int(paid / MS_PER_HOUR + Fraction(1, 2))


def _covered_ms(spans: list[tuple[int, int]]) -> int:
    """How much time lies in any of them."""
    covered, until = 0, 0
    for start, end in sorted(spans):
        covered += max(0, end - max(start, until))
        until = max(until, end)
    return covered
