"""The setup of the engine's process: what it loads, how it ends with its parent, and where its prints go."""

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

SELDOM = ("bitsandbytes",)
"""peft imports this package, where it is installed, to know its layers when it meets them. The package brings torch's
compiler along and takes a fifth of an engine's start. Only the 8-bit optimizer needs it, and imports it itself. The
price: peft, diffusers and transformers take the package for absent as long as the process lives, and know no layers
of its kind."""
PR_SET_PDEATHSIG = 1  # linux/prctl.h


@contextmanager
def absent(*packages: str) -> Iterator[None]:
    """Hide these packages from imports, unless they are loaded already; afterwards they can be imported as ever."""
    hidden = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: an import fails, and no spec is found
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


@contextmanager
def kept_for_good() -> Iterator[None]:
    """Suspend the garbage collector, and exempt from it whatever is there at the end (`gc.freeze`).

    Importing torch and diffusers makes some million objects. Python stops to search among them many times on the way,
    in vain, and again in full at each later `gc.collect()`.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def die_with_parent() -> bool:
    """Ask Linux to kill this process when the thread that started it ends. False where that cannot be asked.

    The end of standard input says the same, but only to a process whose reader thread gets to run: one that hangs
    in a driver call, holding the interpreter's lock, would keep the GPU for ever.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)


def take_stdout() -> IO[bytes]:
    """Keep the original standard output for messages, and let everything else that is printed go to stderr.

    Works on the file descriptors, so that prints of C libraries and of child processes are turned away as well.
    """
    sys.stdout.flush()
    kept = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return os.fdopen(kept, "wb", buffering=0)
