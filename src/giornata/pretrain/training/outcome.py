"""How training ends, for those who do not train themselves."""

from enum import StrEnum


class Outcome(StrEnum):
    """How a call of `train` ended. Always with a checkpoint of everything that was trained."""

    FINISHED = "finished"  # all phases
    PREEMPTED = "preempted"  # stopped on a notice; start again to go on
