"""Turns are fair between projects, whatever is submitted and handed out when."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from giornata.domain.jobs.routing import (
    AFFINITY_WINDOW,
    RECENT,
    Candidate,
    Turns,
    memory_after_too_small,
    next_turn,
    rank,
)


@cache
def rank_of(job_id: str, turn: int, model_held: bool) -> tuple[int, int, int, int, int, int, int, str]:
    """Of a job like all those in a queue, worked out once. It ends with the job's id."""
    return rank(Candidate(job_id=job_id, interrupted=False, priority=0, turn=turn, model_held=model_held))


@dataclass
class TurnQueue:
    """Jobs of one kind and priority, kept as the store keeps them; a model is a number."""

    waiting: dict[str, tuple[str, int, int]] = field(default_factory=dict)  # id: project, turn, model
    given: list[tuple[str, int]] = field(default_factory=list)  # project and turn, latest last
    made: int = 0

    def submit(self, project: str, model: int = 0, count: int = 1) -> None:
        for _ in range(count):
            self.made += 1
            self.waiting[f"job_{self.made:06d}"] = (project, next_turn(self.turns(project)), model)

    def turns(self, project: str) -> Turns:
        queued = [(whose, turn) for whose, turn, _ in self.waiting.values()]
        own = [turn for whose, turn in [*queued, *self.given] if whose == project]
        return Turns(
            head=min((turn for _, turn in queued), default=None),
            recent=[turn for _, turn in self.given[-RECENT:]],
            own=max(own, default=None),
        )

    def hand_out(self, held: int | None = None, *, unfit: Sequence[str] = ()) -> str | None:
        """To a node that holds this model: whose job it was."""
        ranks = [
            rank_of(job_id, turn, model == held)
            for job_id, (_, turn, model) in self.waiting.items()
            if job_id not in unfit
        ]
        if not ranks:
            return None
        project, turn, _ = self.waiting.pop(min(ranks)[-1])
        self.given.append((project, turn))
        return project


@dataclass
class ServedCounts:
    """What each of two projects was handed out since both wait."""

    counts: Counter[str] = field(default_factory=Counter)

    def note(self, queue: TurnQueue, project: str | None) -> None:
        self.counts[project or ""] += 1
        if {whose for whose, _, _ in queue.waiting.values()} < {"a", "b"}:
            self.counts.clear()

    @property
    def lead(self) -> int:
        return abs(self.counts["a"] - self.counts["b"])


SUBMIT = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2), st.sampled_from([1, 1, 2, 5, 40]))
HAND_OUT = st.tuples(st.sampled_from([None, 0, 1, 2]), st.sampled_from([1, 3, 20]))


@given(st.lists(SUBMIT | HAND_OUT, max_size=60))
@example([("a", 0, 40), ("b", 1, 40), (0, 20), (0, 20)])
@example([("a", 0, 40), ("b", 1, 40), (None, 32), ("b", 0, 40), (0, 14), *[(0, 3)] * 2, ("a", 0, 1)])
def test_turns_of_two_waiting_projects_differ_by_at_most_two_affinity_windows(
    story: list[tuple[str | int | None, int, int] | tuple],
) -> None:
    """By a window at the begin of the time in which both wait, and by one at its end."""
    queue, counts = TurnQueue(), ServedCounts()
    for step in story:
        if len(step) == 3:
            waits, before = step[0] in {whose for whose, _, _ in queue.waiting.values()}, queue.turns(step[0]).own
            queue.submit(step[0], step[1], step[2])
            if waits and before is not None:
                assert queue.turns(step[0]).own == before + step[2], "who waits leaves out no turn"
            continue
        for _ in range(step[1]):
            counts.note(queue, queue.hand_out(step[0]))
            assert counts.lead <= 2 * AFFINITY_WINDOW


@given(st.lists(SUBMIT | st.tuples(st.none(), st.sampled_from([1, 3, 20])), max_size=60))
def test_turns_without_held_models_alternate_between_two_waiting_projects(story: list[tuple]) -> None:
    queue, counts = TurnQueue(), ServedCounts()
    for step in story:
        if len(step) == 3:
            queue.submit(step[0], step[1], step[2])
            continue
        for _ in range(step[1]):
            counts.note(queue, queue.hand_out())
            assert counts.lead <= 2


@given(st.lists(st.sampled_from(["submit", "hand out"]), max_size=60))
def test_a_project_alone_sees_first_in_first_out(story: list[str]) -> None:
    queue = TurnQueue()
    order: list[str] = []
    for step in story:
        if step == "submit":
            queue.submit("a")
            order.append(f"job_{queue.made:06d}")
        elif order:
            before = set(queue.waiting)
            queue.hand_out()
            assert before - set(queue.waiting) == {order.pop(0)}


def test_late_project_with_few_jobs_gets_turns_near_head_of_queue() -> None:
    queue = TurnQueue()
    queue.submit("flood", count=1000)
    for _ in range(300):
        queue.hand_out()
    queue.submit("late", count=2)
    assert [queue.hand_out() for _ in range(5)] == ["flood", "late", "flood", "late", "flood"]


def test_sending_one_job_after_the_other_is_no_way_past_those_who_wait() -> None:
    queue = TurnQueue()
    queue.submit("flood", count=1000)
    counts: Counter[str | None] = Counter()
    for _ in range(200):
        if not any(whose == "drip" for whose, _, _ in queue.waiting.values()):
            queue.submit("drip")
        counts[queue.hand_out()] += 1
    assert abs(counts["drip"] - counts["flood"]) <= 2


def test_waiting_project_gets_consecutive_turns_while_other_held_models_are_preferred() -> None:
    queue = TurnQueue()
    for project in ("a", "b", "c"):
        queue.submit(project, 0 if project == "a" else 1, count=1 if project == "a" else 40)
    assert "a" not in [queue.hand_out(held=1) for _ in range(2 * (AFFINITY_WINDOW - 2))]
    queue.submit("a")
    assert [turn for whose, turn, _ in queue.waiting.values() if whose == "a"] == [1, 2]


def test_a_head_that_nobody_may_take_does_not_let_newcomers_past_those_who_wait_for_long() -> None:
    queue = TurnQueue()
    queue.submit("large")
    queue.submit("flood", count=2000)
    for _ in range(1000):
        assert queue.hand_out(unfit=["job_000001"]) == "flood"
    queue.submit("late", count=2000)
    counts = Counter(queue.hand_out(unfit=["job_000001"]) for _ in range(200))
    assert abs(counts["flood"] - counts["late"]) <= 2 * AFFINITY_WINDOW


def test_long_waiting_job_is_handed_out_first_and_newcomer_gets_no_large_lead() -> None:
    """Its turn is of long ago, and it is among those that began latest."""
    queue = TurnQueue()
    queue.submit("large")
    queue.submit("flood", count=2000)
    for _ in range(1000):
        queue.hand_out(unfit=["job_000001"])
    assert queue.hand_out() == "large"
    queue.submit("late", count=2000)
    counts = Counter(queue.hand_out() for _ in range(200))
    assert abs(counts["flood"] - counts["late"]) <= 2 * AFFINITY_WINDOW


def test_after_an_idle_time_what_was_used_before_does_not_count() -> None:
    queue = TurnQueue()
    queue.submit("a", count=500)
    while queue.hand_out():
        pass
    queue.submit("b", count=3)
    queue.submit("a", count=3)
    assert [queue.hand_out() for _ in range(6)] == ["b", "a"] * 3


def test_the_first_job_of_all_has_turn_1() -> None:
    assert next_turn(Turns(head=None, recent=(), own=None)) == 1


GIB = 2**30
# What cards of the common sizes report, in MiB: with and without error correction.
SIZES = ((10_240, 10_240), (11_264, 11_264), (12_282, 12_288), (15_360, 16_384), (23_028, 24_576), (32_607, 32_768))
LARGER = ((40_960, 40_960), (45_500, 49_140), (81_559, 81_920), (95_830, 97_887), (143_771, 143_771))


@pytest.mark.parametrize("number", range(len(SIZES + LARGER) - 1))
def test_a_job_that_did_not_fit_is_tried_on_the_next_larger_size(number: int) -> None:
    (_, most), (next_least, _) = (SIZES + LARGER)[number : number + 2]
    assert most * 2**20 < memory_after_too_small(most * 2**20) <= next_least * 2**20 or most == 11_264


@pytest.mark.parametrize(("least", "most"), [(24_564, 24_576), (23_028, 24_437), (45_900, 48_669)])
def test_memory_after_too_small_exceeds_every_gpu_of_the_same_size(least: int, most: int) -> None:
    assert memory_after_too_small(least * 2**20) > most * 2**20
