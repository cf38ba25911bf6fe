"""The states of a picture of an order, and when a picture that could not be drawn is given up."""

from enum import StrEnum

from giornata.domain.reasons import BLAME, Blame, Reason

MOST_LAPSES = 10
"""Leases of a picture that may fall silent one after the other before the picture fails."""


class PictureState(StrEnum):
    """The states of a picture. The last three are terminal."""

    QUEUED = "queued"
    LEASED = "leased"
    PAUSED = "paused"  # its order waits for money
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


OPEN = (PictureState.QUEUED, PictureState.LEASED, PictureState.PAUSED)


def halved(pictures: int) -> int:
    """Return how many pictures may share a lease after a lease of so many has crashed."""
    return max(1, pictures // 2)


def is_culprit(reason: Reason, pictures: int) -> bool:
    """Return True when the end of a lease says something about its pictures: the lease had one picture only, and the
    reason leaves open whether the picture or the machine is to blame."""
    return pictures == 1 and BLAME[reason] is Blame.UNDECIDED


def fails_at_once(reason: Reason) -> bool:
    """Return True when no node can draw the picture."""
    return BLAME[reason] is Blame.JOB
