"""Cursors, limits, instants."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from giornata.control.pages import LARGEST, check_after, check_limit, cut, decode_cursor, encode_cursor
from giornata.control.timestamps import instant
from giornata.domain.errors import InvalidInput


@given(at_ms=st.integers(0, LARGEST - 1), row_id=st.text(st.characters(exclude_characters="\0"), max_size=64))
def test_a_cursor_comes_back_as_it_went(at_ms: int, row_id: str) -> None:
    cursor = encode_cursor(at_ms, row_id)
    assert cursor.isascii()
    assert decode_cursor(cursor) == (at_ms, row_id)


@given(st.text())
def test_any_other_text_is_refused_and_nothing_else_happens(cursor: str) -> None:
    try:
        at_ms, row_id = decode_cursor(cursor) or (0, "")
    except InvalidInput as error:
        assert error.faults[0].where == "cursor"
    else:
        assert (type(at_ms), type(row_id)) == (int, str)


@pytest.mark.parametrize(
    "place", [[1], [1, 2], ["1", "a"], [True, "a"], [-1, "a"], [LARGEST, "a"], [1, "\0"], {"a": 1}]
)
def test_a_place_that_no_row_has_is_refused(place: object) -> None:
    import base64
    import json

    with pytest.raises(InvalidInput):
        decode_cursor(base64.urlsafe_b64encode(json.dumps(place).encode()).decode())


def test_the_beginning_has_no_cursor_and_the_last_page_no_next() -> None:
    assert decode_cursor(None) is None
    rows = [(3, "c"), (2, "b"), (1, "a")]
    page, following = cut(rows, 2, lambda row: row)
    assert (page, decode_cursor(following)) == (rows[:2], (2, "b"))
    assert cut(rows, 3, lambda row: row) == (rows, None)


def test_limits_and_places_are_bounded() -> None:
    for good in (1, 1000):
        check_limit(good)
    for bad in (0, -1, 1001):
        with pytest.raises(InvalidInput, match="limit"):
            check_limit(bad)
    check_after(-1, where="after")
    for bad in (-2, LARGEST):
        with pytest.raises(InvalidInput, match="after"):
            check_after(bad, where="after")


def test_instants_are_utc_and_exact_to_the_millisecond() -> None:
    assert instant(1_790_000_000_123) == datetime(2026, 9, 21, 14, 13, 20, 123_000, tzinfo=UTC)
    assert instant(None) is None


@pytest.fixture(params=["<+14>-14", "NST3:30NDT,M3.2.0,M11.1.0"], ids=["fourteen ahead", "half an hour off"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Another local time for this process."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def test_no_zone_moves_an_instant(zone: str) -> None:
    assert time.timezone != 0
    for at_ms in (0, 1_772_947_799_999, 1_772_947_800_000, 1_790_000_000_123):  # among them the hour that is left out
        shown = instant(at_ms)
        assert shown is not None
        assert shown.utcoffset() == timedelta(0)
        assert shown - datetime(1970, 1, 1, tzinfo=UTC) == timedelta(milliseconds=at_ms)
        assert shown.isoformat().endswith("+00:00")
