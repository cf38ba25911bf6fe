"""When an instance ended, by what is known of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.billing.costs import ended_about_ms

INSTANT = st.integers(0, 1000)


@pytest.mark.parametrize(
    ("there_ms", "gone_ms", "asked_ms", "missed_ms", "expected"),
    [
        (100, 140, None, None, 120),
        (100, 140, 130, None, 130),
        (100, 140, 90, None, 120),  # it was listed after it was asked, so the call had not done it yet
        (100, 140, 150, None, 120),  # it was gone before it was asked
        (100, 140, None, 110, 105),
        (100, 140, 130, 110, 130),
        (100, 140, None, 100, 120),  # it was listed after that heartbeat was due: the node was silent, and there
        (100, 140, None, 150, 120),
        (150, 140, None, 180, 140),  # its node was heard after it was listed no more
    ],
)
def test_the_end_is_what_was_asked_or_the_middle_of_what_is_not_known(
    there_ms: int, gone_ms: int, asked_ms: int | None, missed_ms: int | None, expected: int
) -> None:
    assert ended_about_ms(there_ms=there_ms, gone_ms=gone_ms, asked_ms=asked_ms, missed_ms=missed_ms) == expected


@given(there=INSTANT, gone=INSTANT, asked=st.none() | INSTANT, missed=st.none() | INSTANT)
def test_estimated_end_of_instance_lies_between_last_seen_and_gone(
    there: int, gone: int, asked: int | None, missed: int | None
) -> None:
    ended_ms = ended_about_ms(there_ms=there, gone_ms=gone, asked_ms=asked, missed_ms=missed)
    assert min(there, gone) <= ended_ms <= gone
