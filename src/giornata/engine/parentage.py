"""Dying with the parent."""

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> bool:
    """Ask Linux to kill this process when the thread that started it ends. False where that cannot be asked.

    The end of standard input says the same, but only to a process whose reader thread gets to run: one that hangs
    in a driver call, holding the interpreter's lock, would keep the GPU for ever.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)
