"""The pauses between sign-ins that fail, for one account from one address."""

FREE_FAILURES = 4
FIRST_PAUSE_S = 1
LONGEST_PAUSE_S = 900


def pause_after_s(failures: int) -> int:
    """Return the pause after so many failures in a row: none at first, then 1, 2, 4 … seconds, 15 minutes at most."""
    over = failures - FREE_FAILURES
    if over <= 0:
        return 0
    doublings = min(over - 1, LONGEST_PAUSE_S.bit_length())
    return min(FIRST_PAUSE_S << doublings, LONGEST_PAUSE_S)
