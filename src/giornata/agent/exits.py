"""How a node ends."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process ends with; the numbers are those of sysexits.h."""

    DONE = 0
    SERVER_GONE = 69
    UNFIT = 71  # the machine is not fit for the fleet's work, or no longer
    UNUSABLE = 78


class GaveUp(Exception):
    """The node cannot go on; carries the exit code. The reason is logged where it is known."""

    def __init__(self, code: ExitCode) -> None:
        super().__init__(code.name)
        self.code = code
