"""The `Prefer` header, as RFC 7240 has it."""

import pytest

from giornata.api.requests.waiting import MAX_WAIT_S, preferred_wait_s


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        (["wait=60"], 60),
        (["respond-async, wait=10"], 10),
        (["respond-async", 'WAIT = "7"; foo=bar'], 7),
        (["wait=5, wait=9"], 5),
        (["wait=0"], 0),
        (["wait=99999999999999999999"], MAX_WAIT_S),
        (["wait", "wait=", "wait=-1", "wait=1.5", "wait=soon"], None),
        (["return=minimal"], None),
        ([], None),
    ],
)
def test_first_wait_that_can_be_read_counts_and_is_bounded(headers: list[str], seconds: int | None) -> None:
    assert preferred_wait_s(headers) == seconds
