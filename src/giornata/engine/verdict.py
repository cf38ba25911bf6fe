"""The reason behind an exception of a workload. Classes are compared by name, so that torch is not loaded."""

import errno
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from giornata.domain.errors import Fault, WorkloadFailed
from giornata.domain.jobs.reasons import Reason

DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO})
# What CUDA says when its context is lost: every later call of the process fails as well.
BROKEN_DEVICE = ("CUDA error", "cuDNN error", "CUBLAS_STATUS", "NCCL error", "device-side assert", "CUDA driver")
# Of memory that CUDA, cuBLAS or cuDNN did not get, in words and not by a class of its own; the context lives on.
NO_MEMORY = ("CUDA error: out of memory", "CUDA driver error: out of memory", "_STATUS_ALLOC_FAILED")
LONGEST_MESSAGE = 3500
FRAMES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The reason why an attempt failed. With `device_broken` the process must not go on."""

    reason: Reason
    message: str
    faults: tuple[Fault, ...] = ()
    device_broken: bool = False


def judge(error: BaseException) -> Verdict:
    """Return the verdict on an exception of a workload other than Stopped."""
    if isinstance(error, WorkloadFailed):
        broken = error.reason is Reason.NODE_DRIVER
        return Verdict(reason=error.reason, message=error.message, faults=error.faults, device_broken=broken)
    if isinstance(error, MemoryError) or _is_named(error, "OutOfMemoryError") or _says(error, NO_MEMORY):
        return Verdict(reason=Reason.NODE_VRAM, message=f"out of memory: {_brief(error)}")
    if isinstance(error, OSError) and error.errno in DISK_ERRNOS:
        return Verdict(reason=Reason.NODE_DISK, message=f"the node's disk: {_brief(error)}")
    if _is_named(error, "AcceleratorError") or _says(error, BROKEN_DEVICE):
        return Verdict(reason=Reason.NODE_DRIVER, message=_brief(error), device_broken=True)
    return Verdict(reason=Reason.CRASHED, message=_with_traceback(error))


def _is_named(error: BaseException, name: str) -> bool:
    return any(each.__name__ == name for each in type(error).__mro__)


def _says(error: BaseException, signs: Sequence[str]) -> bool:
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:LONGEST_MESSAGE]


def _with_traceback(error: BaseException) -> str:
    """Return the error and the innermost frames: enough to see where, short enough for an event."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    where = "".join(f"\n  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)
    return (_brief(error)[: LONGEST_MESSAGE // 2] + where)[:LONGEST_MESSAGE]
