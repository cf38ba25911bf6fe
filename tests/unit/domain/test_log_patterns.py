"""Last words that tell of a fault of the machine, and words that must not.

The examples are lines as the named programs print them; paths and numbers are made up.
"""

import pytest

from giornata.domain.jobs.reasons import Reason
from giornata.domain.machines.log_patterns import MOST_LINES, PATTERNS, RECENT_LINES, _squeezed, find_blame

DRIVER, DISK, DOWNLOAD = Reason.NODE_DRIVER, Reason.NODE_DISK, Reason.NODE_DOWNLOAD

OTHERS_FILL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 23.65 "
    "GiB of which 5.19 MiB is free. Process 4242 has 17.10 GiB memory in use. Including non-PyTorch memory, this "
    "process has 6.50 GiB memory in use. Of the allocated memory 6.10 GiB is allocated by PyTorch"
)
JOB_FILLS = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "23.65 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 22.90 GiB memory in use"
)

TOLD = [
    # PyTorch with CUDA's own words
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", DRIVER),
    ("torch.AcceleratorError: CUDA error: unspecified launch failure", DRIVER),
    ("  what():  CUDA error: unspecified launch failure", DRIVER),
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device", DRIVER),
    ("CUDA error: device kernel image is invalid", DRIVER),
    ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", DRIVER),
    ("RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version", DRIVER),
    ("RuntimeError: CUDA error: forward compatibility was attempted on non supported HW", DRIVER),
    (
        "RuntimeError: CUDA error: system has unsupported display driver / cuda driver combination (Error 803)",
        DRIVER,
    ),
    ("RuntimeError: CUDA error: system not yet initialized", DRIVER),
    ("RuntimeError: CUDA error: hardware stack error", DRIVER),
    ("RuntimeError: CUDA error: unknown error", DRIVER),
    ("RuntimeError: CUDA error: initialization error", DRIVER),
    # the kernel's log, where a container shows it
    ("NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", DRIVER),
    (
        "[12345.678901] NVRM: Xid (PCI:0000:3b:00): 48, pid=4242, name=python, An uncorrectable double bit error",
        DRIVER,
    ),
    ("NVRM: Xid (PCI:0000:17:00): 119, pid=1, name=nvidia-smi, Timeout after 6s of waiting for RPC response", DRIVER),
    # NVML
    ("Failed to initialize NVML: Driver/library version mismatch", DRIVER),
    ("pynvml.NVMLError_LibRmVersionMismatch: Driver/library version mismatch", DRIVER),
    # torch/cuda/__init__.py
    ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update", DRIVER),
    ("RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU", DRIVER),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", DRIVER),
    (
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb`",
        DRIVER,
    ),
    # Python and safetensors on a disk
    ("OSError: [Errno 28] No space left on device: '/scratch/run-1/att_1/checkpoint-40.part'", DISK),
    ("OSError: [Errno 30] Read-only file system: '/scratch/x'", DISK),
    ("OSError: [Errno 5] Input/output error", DISK),
    ("OSError: [Errno 122] Disk quota exceeded", DISK),
    (
        "safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)",
        DISK,
    ),
    (
        "safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, "
        'message: "No space left on device" })',
        DISK,
    ),
    # the hub
    (
        "requests.exceptions.ConnectionError: (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): "
        "Max retries exceeded with url: /a/b/resolve/main/model_index.json\"), '(Request ID: 1)')",
        DOWNLOAD,
    ),
    (
        "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='cdn-lfs.hf.co', port=443): Read timed out.",
        DOWNLOAD,
    ),
    (
        "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the "
        "Hub and we cannot find the requested files in the local cache.",
        DOWNLOAD,
    ),
    ("socket.gaierror: [Errno -3] Temporary failure in name resolution", DOWNLOAD),
    ("httpx.ConnectError: [Errno -3] Temporary failure in name resolution", DOWNLOAD),
    # memory
    (OTHERS_FILL, Reason.NODE_VRAM),
    (JOB_FILLS, Reason.NODE_TOO_SMALL),
]
NOT_TOLD = [
    # what programs do wrong by themselves
    "RuntimeError: CUDA error: device-side assert triggered",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "NVRM: Xid (PCI:0000:65:00): 13, pid=4242, name=python, Graphics SM Warp Exception",
    "NVRM: Xid (PCI:0000:65:00): 31, pid=4242, name=python, MMU Fault",
    "NVRM: Xid (PCI:0000:65:00): 43, pid=4242, name=python, Ch 00000008",
    "NVRM: Xid (PCI:0000:65:00): 791, pid=4242, name=python, of a number that there is not",
    "OSError: [Errno 2] No such file or directory: 'x'",
    "FileNotFoundError: [Errno 2] No such file or directory: 'No space left on device'",
    "safetensors_rust.SafetensorError: Error while deserializing header: header too large",
    "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co.example.net', port=443): refused",
    "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='my-tracker.example', port=443): refused",
    "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error.",
    "huggingface_hub.errors.GatedRepoError: 403 Client Error.",
    "torch.OutOfMemoryError: CUDA out of memory, says somebody who gives no figures",
    # somebody's words about such faults
    "caption: a photo of a CUDA error: unspecified launch failure",
    "ValueError: no caption for 'CUDA error: uncorrectable ECC error encountered.jpg'",
    "reading 'OSError: [Errno 28] No space left on device.png'",
    "The following part of your input was truncated: ['runtimeerror : cuda error : unspecified launch failure']",
    "WARNING ECC error",
    "INFO NVRM: Xid (PCI:0000:65:00): 79, pid=1, is what I look for",
    "step 7: CUDA error: none",
    "",
]


@pytest.mark.parametrize(("line", "reason"), TOLD)
def test_a_librarys_own_words_tell_the_reason(line: str, reason: Reason | None) -> None:
    found = find_blame(["loading", line, "", "and so on"], exit_code=1, texts=["a photo of sks dog"])
    assert (None if found is None else found.reason) is reason
    assert found is None or found.evidence == line


@pytest.mark.parametrize("line", NOT_TOLD)
def test_harmless_log_line_blames_no_machine(line: str) -> None:
    assert find_blame(["loading", line], exit_code=1, texts=()) is None


def test_each_row_has_an_example() -> None:
    for row in PATTERNS:
        lines = [line for line, reason in TOLD if reason is row.reason and row.pattern.search(line)]
        assert lines or "os error" in row.pattern.pattern, row  # of safetensors' four errors one is shown


def test_each_line_that_a_row_matches_has_its_phrase() -> None:
    """Or else a user's text without the phrase could be matched."""
    for row in PATTERNS:
        assert all(_squeezed(row.phrase) in _squeezed(line) for line, _ in TOLD if row.pattern.search(line))
        assert len(_squeezed(row.phrase)) >= 7


SPELLINGS = [
    "CUDA error: uncorrectable ECC error encountered",
    "\nRuntimeError: CUDA error: uncorrectable ECC error encountered\n",
    "cuda error : uncorrectable ecc error encountered",
]


@pytest.mark.parametrize("text", SPELLINGS)
def test_a_text_of_the_users_cannot_blame_a_machine_however_it_is_printed(text: str) -> None:
    said = ["RuntimeError: CUDA error: uncorrectable ECC error encountered", *text.splitlines()]
    assert find_blame(said, exit_code=1, texts=["a photo of sks dog", text]) is None
    # The job's other faults are told as ever.
    full = "OSError: [Errno 28] No space left on device"
    found = find_blame([*said, full], exit_code=1, texts=[text])
    assert found is not None
    assert found.reason is DISK


def test_a_text_of_the_users_about_memory_blames_nobody_either() -> None:
    assert find_blame([OTHERS_FILL], exit_code=1, texts=["cuda OUT of memory"]) is None


def test_phrases_do_not_run_over_from_one_text_into_the_next() -> None:
    texts = ["a CUDA error: unspecified launch", "failure of a rocket"]
    found = find_blame(["RuntimeError: CUDA error: unspecified launch failure"], exit_code=1, texts=texts)
    assert found is not None


@pytest.mark.parametrize("exit_code", [-9, -15])
def test_log_line_before_sigkill_or_sigterm_of_engine_gives_no_blame(exit_code: int) -> None:
    line = "RuntimeError: CUDA error: unspecified launch failure"
    assert find_blame([line], exit_code=exit_code, texts=()) is None
    for other in (-6, 1, 0, None):
        assert find_blame([line], exit_code=other, texts=()) is not None


def test_log_line_followed_by_many_steps_is_no_cause_of_crash() -> None:
    went_on = ["step"] * RECENT_LINES
    retried = next(line for line, reason in TOLD if reason is DOWNLOAD)
    assert find_blame([retried, *went_on[1:]], exit_code=1, texts=()) is not None
    assert find_blame([retried, *went_on], exit_code=1, texts=()) is None
    # A broken context is broken for good: what comes after it are words about the end.
    broken = "RuntimeError: CUDA error: unspecified launch failure"
    assert find_blame([broken, *went_on], exit_code=1, texts=()) is not None
    assert find_blame([broken, *["step"] * MOST_LINES], exit_code=1, texts=()) is None


def test_the_driver_comes_before_what_follows_from_it() -> None:
    lines = ["OSError: [Errno 5] Input/output error", "RuntimeError: CUDA error: unspecified launch failure"]
    found = find_blame(lines, exit_code=1, texts=())
    assert found is not None
    assert found.reason is DRIVER
