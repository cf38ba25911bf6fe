"""Turns, keys and bounds of pictures."""

import pytest

from giornata.domain.generation.picture import (
    MOST_ERROR_CHARS,
    error_words,
    fails_at_once,
    halved,
    is_fruitless,
    is_undecided,
    parts_of_key,
    picture_key,
)
from giornata.domain.jobs.reasons import Reason
from giornata.domain.jobs.routing import PictureTurns, first_picture_turn

WORK = 100


def test_the_first_order_ever_begins_at_turn_zero() -> None:
    assert first_picture_turn(PictureTurns(head=None, last=None, own=None)) == 0


def test_a_project_that_comes_late_stands_at_the_head() -> None:
    assert first_picture_turn(PictureTurns(head=7 * WORK, last=900 * WORK, own=None)) == 7 * WORK


def test_a_projects_next_order_stands_behind_its_last_one() -> None:
    assert first_picture_turn(PictureTurns(head=7 * WORK, last=900 * WORK, own=900 * WORK)) == 900 * WORK


def test_after_a_busy_period_the_queue_begins_behind_all_that_was_queued() -> None:
    assert first_picture_turn(PictureTurns(head=None, last=900 * WORK, own=20 * WORK)) == 900 * WORK


def test_a_key_tells_project_lease_and_hash() -> None:
    key = picture_key("default", "att_1", "f" * 64)
    assert parts_of_key(key) == ("default", "att_1", "f" * 64)
    assert parts_of_key(f"default/att_1/{'f' * 64}") is None
    assert parts_of_key("pictures/default/att_1") is None


@pytest.mark.parametrize(("pictures", "half"), [(16, 8), (3, 1), (1, 1), (0, 1)])
def test_leases_halve_down_to_one_picture(pictures: int, half: int) -> None:
    assert halved(pictures) == half


def test_reasons_tell_who_may_be_to_blame_for_a_picture() -> None:
    assert [reason for reason in Reason if is_undecided(reason)] == [Reason.NODE_TOO_SMALL, Reason.CRASHED]
    assert [reason for reason in Reason if fails_at_once(reason)] == [Reason.BAD_SPEC, Reason.BAD_DATA]
    assert is_fruitless(Reason.LEASE_EXPIRED)
    assert is_fruitless(Reason.NODE_DISK)
    assert not is_fruitless(Reason.RELEASED)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("/models/sdxl does not exist", "/models/sdxl does not exist"),
        ("two\n\tlines\x00\x1b[1m\u202e", "two lines\\x00\\x1b[1m\\u202e"),
        ("", ""),
    ],
)
def test_error_of_a_picture_is_one_line_without_commands(said: str, told: str) -> None:
    assert error_words(said, Reason.CRASHED) == f"{told} (crashed)"


def test_long_error_of_a_picture_is_cut_and_keeps_its_reason() -> None:
    told = error_words("x" * 4000, Reason.BAD_SPEC)
    assert told == "x" * (MOST_ERROR_CHARS - 1) + "… (bad_spec)"
