"""Attributes exceptions from torch or the operating system to the node, where the exception shows it."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from safetensors import SafetensorError

from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason

_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})
_OS_ERROR = re.compile(r"os error (\d+)")  # how safetensors, written in Rust, words an errno
_NO_MEMORY = re.compile(r"out of memory|_STATUS_ALLOC_FAILED")  # cuBLAS and cuDNN say the latter of their workspaces
_DRIVER = re.compile(r"CUDA error|CUDA driver|cuDNN error|CUBLAS_STATUS|CUDNN_STATUS|NVML|HIP error")


def reason_of(error: BaseException) -> Reason | None:
    """Return the reason that is the node's fault, if the exception shows it; None otherwise."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return Reason.NODE_VRAM
    if isinstance(error, OSError) and error.errno in _DISK:
        return Reason.NODE_DISK
    if isinstance(error, SafetensorError):
        found = _OS_ERROR.search(str(error))
        return Reason.NODE_DISK if found and int(found.group(1)) in _DISK else None
    if isinstance(error, RuntimeError):
        if _NO_MEMORY.search(str(error)) and re.search("CUDA|cuDNN", str(error)):
            return Reason.NODE_VRAM
        return Reason.NODE_DRIVER if _DRIVER.search(str(error)) else None
    return None


@contextmanager
def blamed() -> Iterator[None]:
    """Turn the node's faults into WorkloadFailed; let everything else pass."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = reason_of(error)
        if reason is None:
            raise
        raise WorkloadFailed(reason, f"{type(error).__name__}: {error}") from error
