"""The pauses between sign-ins that fail."""

from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.accounts.sign_in import FREE_FAILURES, LONGEST_PAUSE_S, pause_after_s


def test_first_failures_cost_nothing_and_the_next_ones_ever_more() -> None:
    pauses = [pause_after_s(failures) for failures in range(17)]
    assert pauses[: FREE_FAILURES + 1] == [0] * (FREE_FAILURES + 1)
    assert pauses[FREE_FAILURES + 1 :] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900]


@given(st.integers(0, 10**9))
def test_pause_grows_and_has_an_end(failures: int) -> None:
    assert 0 <= pause_after_s(failures) <= pause_after_s(failures + 1) <= LONGEST_PAUSE_S
