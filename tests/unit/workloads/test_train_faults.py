"""Whose fault it is when torch or the disk gives up."""

import errno

import pytest
import torch
from safetensors import SafetensorError

from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.workloads.train.faults import blamed, reason_of

FAULTS: list[tuple[BaseException, Reason | None]] = [
    (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), Reason.NODE_VRAM),
    (RuntimeError("CUDA error: out of memory"), Reason.NODE_VRAM),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), Reason.NODE_VRAM),
    (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), Reason.NODE_VRAM),
    (RuntimeError("out of memory"), None),
    (RuntimeError("CUDA error: unspecified launch failure"), Reason.NODE_DRIVER),
    (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"), Reason.NODE_DRIVER),
    (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"), Reason.NODE_DRIVER),
    (OSError(errno.ENOSPC, "No space left on device"), Reason.NODE_DISK),
    (OSError(errno.EROFS, "Read-only file system"), Reason.NODE_DISK),
    (SafetensorError("I/O error: No space left on device (os error 28)"), Reason.NODE_DISK),
    (SafetensorError("invalid header"), None),
    (FileNotFoundError(errno.ENOENT, "gone"), None),
    (RuntimeError("shapes do not match"), None),
    (ValueError("CUDA error"), None),
]


@pytest.mark.parametrize(("error", "reason"), FAULTS, ids=lambda value: str(value)[:40])
def test_faults_of_the_node_are_told_from_others(error: BaseException, reason: Reason | None) -> None:
    assert reason_of(error) is reason
    with pytest.raises((WorkloadFailed, type(error))) as caught, blamed():
        raise error
    if reason is None:
        assert caught.value is error
    else:
        assert isinstance(caught.value, WorkloadFailed)
        assert caught.value.reason is reason
        assert str(error) in caught.value.message
