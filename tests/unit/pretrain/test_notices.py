"""When Ray Train is asked whether a node is taken away: often enough for a notice of half a minute, and by all
trainers before the same step."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from giornata.pretrain.board import RESIZE, STOP, Board
from giornata.pretrain.notices import ASK_WITHIN_S, MOST_STEPS, Notices


class Line:
    """A channel to a first trainer that says `first` whenever something is gathered; None: what everybody says."""

    rank, world = 1, 2

    def __init__(self, first: int | None) -> None:
        self._first = first

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        return [[numbers[0] if self._first is None else self._first], list(numbers)]


class Asked:
    """Ray Train; it announces something from the step `at` on. `steps` are those before which it was asked."""

    def __init__(self, *, at: int = 10**9) -> None:
        self.step, self.steps, self._at = 0, list[int](), at

    def __call__(self) -> object:
        self.steps.append(self.step)
        return object() if self.step >= self._at else None


def asked_before(step_s: Sequence[float], *, first: int | None = None, at: int = 10**9) -> Asked:
    """Steps that took so long, one after the other."""
    now_s, train = [0.0], Asked(at=at)
    notices = Notices(None, Line(first), clock_s=lambda: now_s[0], announced=train)  # type: ignore[arg-type]
    for took_s in step_s:
        train.step += 1
        if notices():
            break
        now_s[0] += took_s
    return train


def test_long_steps_are_asked_before_every_one() -> None:
    assert asked_before([3.0] * 8).steps == list(range(1, 9))


def test_short_steps_are_not_held_up_by_the_question() -> None:
    asked = asked_before([0.01] * 100).steps
    assert max(later - sooner for sooner, later in pairwise(asked)) == MOST_STEPS
    assert len(asked) <= 2 + 100 // MOST_STEPS


@pytest.mark.parametrize("step_s", [0.3, 0.5, 0.9, 1.9])
def test_no_more_time_than_promised_lies_between_two_questions(step_s: float) -> None:
    asked = asked_before([step_s] * 60).steps
    assert max(later - sooner for sooner, later in pairwise(asked)) * step_s <= ASK_WITHIN_S


def test_all_trainers_go_by_the_steps_of_the_first() -> None:
    assert asked_before([3.0] * 12, first=5).steps == [1, 6, 11]


def test_what_is_announced_stops_before_the_next_step() -> None:
    asked = asked_before([3.0] * 12, at=4)
    assert asked.step == 4
    assert asked.steps == [1, 2, 3, 4]


def test_where_nothing_is_announced_nothing_stops() -> None:
    assert asked_before([3.0] * 12).step == 12


def test_what_the_board_asks_for_lasts_until_the_trainers_start_again_but_for_a_stop() -> None:
    board = Board.__ray_metadata__.modified_class()
    board.begun()
    assert (board.leave(), board.have_left()) == ("", False)
    board.ask_to_resize()
    board.left()
    assert (board.leave(), board.have_left()) == (RESIZE, True)
    board.begun()
    assert (board.leave(), board.have_left()) == ("", False)
    board.ask_to_stop()
    board.ask_to_resize()
    board.begun()
    assert board.leave() == STOP
