"""Faults of a machine, recognized from the last log lines of an engine.

An engine that dies, or fails without a verdict, leaves lines behind. Some of them are a library's own words for a
fault of the machine. Three things keep a user's text, which may stand in a log, from blaming a machine:

- a pattern is bound to the beginning of a line and to the library's own spelling;
- each row names a phrase that every line which it matches contains; when the job's own texts contain that phrase, in
  whatever spelling, the row is not used for this job;
- what a workload logs by itself (`log` on the pipe) is not looked at: only standard error is.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from giornata.domain.jobs.reasons import Reason

GIB = 2**30
MOST_LINES = 200
RECENT_LINES = 20
SENT_BY_OTHERS = frozenset({-9, -15})  # SIGKILL (most likely the kernel's, for want of memory), SIGTERM

# Python's last line of a traceback, C++'s of an uncaught exception, or nothing before it.
RAISED = r"^(?:terminate called.*|\s*what\(\):\s+|[\w.]*(?:[Ee]rror\w*|Exception): )?"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPattern:
    """`lines`: only so many last lines are looked at. A fault that a program may survive counts only when it was
    the last that happened."""

    phrase: str
    pattern: re.Pattern[str]
    reason: Reason
    lines: int = MOST_LINES


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A reason, and the line that gives it away."""

    reason: Reason
    evidence: str


def _cuda(words: str) -> LogPattern:
    pattern = re.compile(RAISED + "CUDA error: " + re.escape(words))
    return LogPattern(phrase=words, pattern=pattern, reason=Reason.NODE_DRIVER)


def _row(phrase: str, pattern: str, reason: Reason, *, lines: int = MOST_LINES) -> LogPattern:
    return LogPattern(phrase=phrase, pattern=re.compile(pattern), reason=reason, lines=lines)


def _driver(phrase: str, pattern: str) -> LogPattern:
    return _row(phrase, pattern, Reason.NODE_DRIVER)


# The words of cudaGetErrorString (CUDA Runtime API, "Error handling"), as PyTorch prints them (c10/cuda). Left out
# are those that a program's own mistake brings about, such as an illegal memory access or a device-side assert.
CUDA_ERRORS = tuple(
    _cuda(words)
    for words in (
        "uncorrectable ECC error encountered",
        "unspecified launch failure",
        "no kernel image is available for execution on the device",
        "device kernel image is invalid",
        "CUDA-capable device(s) is/are busy or unavailable",
        "CUDA driver version is insufficient for CUDA runtime version",
        "forward compatibility was attempted on non supported HW",
        "system has unsupported display driver / cuda driver combination",
        "system not yet initialized",
        "hardware stack error",
        "unknown error",
        "initialization error",
    )
)
# NVIDIA, "XID Errors": those that mean the hardware, its firmware or the driver. 13, 31, 43 and 45 are programs'.
XIDS = (46, 48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140, 143)
DRIVER = (
    *CUDA_ERRORS,
    _driver("NVRM: Xid", rf"^(?:\[[ \d.]+\] )?NVRM: Xid \([^)]*\): (?:{'|'.join(map(str, XIDS))}), "),
    # nvidia-smi and NVML (nvmlErrorString)
    _driver(
        "Driver/library version mismatch",
        RAISED + r"(?:Failed to initialize NVML: )?Driver/library version mismatch",
    ),
    # torch/cuda/__init__.py
    _driver(
        "NVIDIA driver on your system is too old", RAISED + r"The NVIDIA driver on your system is too old \(found"
    ),
    _driver("Found no NVIDIA driver on your system", RAISED + "Found no NVIDIA driver on your system"),
    # cuDNN and cuBLAS by their status, as PyTorch prints it (aten/src/ATen/cudnn, ATen/cuda/Exceptions.cpp)
    _driver("CUDNN_STATUS_EXECUTION_FAILED", RAISED + r"cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    _driver("CUBLAS_STATUS_EXECUTION_FAILED", RAISED + r"CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `"),
)
# Python's OSError, and Rust's std::io::Error inside safetensors'
DISK = tuple(
    row
    for number, words in (
        (28, "No space left on device"),
        (30, "Read-only file system"),
        (5, "Input/output error"),
        (122, "Disk quota exceeded"),
    )
    for row in (
        _row(words, rf"^OSError: \[Errno {number}\] {words}", Reason.NODE_DISK, lines=RECENT_LINES),
        _row(
            words,
            rf"^safetensors_rust\.SafetensorError: .*\b(?:code: {number}, .*{words}|{words} \(os error {number}\))",
            Reason.NODE_DISK,
            lines=RECENT_LINES,
        ),
    )
)
# huggingface_hub/errors.py and file_download.py; requests, urllib3 and httpx on the way to the hub; the resolver's
# EAI_AGAIN, which says that no name server answers.
HUB_HOSTS = r"(?:huggingface|\bhf)\.co'"
DOWNLOAD = (
    _row(
        "LocalEntryNotFoundError",
        r"^huggingface_hub\.(?:errors|utils\._errors)\.LocalEntryNotFoundError: An error happened while trying",
        Reason.NODE_DOWNLOAD,
        lines=RECENT_LINES,
    ),
    _row(
        "HTTPSConnectionPool(host=",
        r"^(?:requests|urllib3)\.exceptions\.\w*(?:ConnectionError|Timeout|SSLError|ProxyError|RetryError): "
        rf".*HTTPSConnectionPool\(host='(?:[\w.-]*{HUB_HOSTS})",
        Reason.NODE_DOWNLOAD,
        lines=RECENT_LINES,
    ),
    _row(
        "Temporary failure in name resolution",
        RAISED + r"\[Errno -3\] Temporary failure in name resolution",
        Reason.NODE_DOWNLOAD,
        lines=RECENT_LINES,
    ),
)
PATTERNS: tuple[LogPattern, ...] = (*DRIVER, *DISK, *DOWNLOAD)

# c10/cuda/CUDACachingAllocator.cpp
OUT_OF_MEMORY = re.compile(
    r"^torch\.(?:cuda\.)?OutOfMemoryError: CUDA out of memory\. .*"
    r"has a total capacity of (?P<total>[\d.]+) (?P<total_unit>[KMG]iB) of which "
    r"(?P<free>[\d.]+) (?P<free_unit>[KMG]iB|bytes) is free\..*"
    r"this process has (?P<own>[\d.]+) (?P<own_unit>[KMG]iB) memory in use"
)
OUT_OF_MEMORY_PHRASE = "CUDA out of memory"
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
OTHERS_BYTES = 1 * GIB  # so much of a card may be a driver's, or a desktop's


def find_blame(lines: Sequence[str], *, exit_code: int | None, texts: Iterable[str]) -> Finding | None:
    """The machine's fault that the last words of an engine tell of, if they do.

    `exit_code` is the engine's (negative: a signal), None while it lives; of one that a signal from outside has
    ended no line tells why. `texts` are all that the user has written into the job.
    """
    if exit_code in SENT_BY_OTHERS:
        return None
    last = list(lines)[-MOST_LINES:]
    written = "\n".join(_squeezed(text) for text in texts)
    for row in PATTERNS:
        if _squeezed(row.phrase) in written:
            continue
        found = next((line for line in last[-row.lines :] if row.pattern.search(line)), None)
        if found is not None:
            return Finding(reason=row.reason, evidence=found)
    return None if _squeezed(OUT_OF_MEMORY_PHRASE) in written else _memory(last[-RECENT_LINES:])


def _memory(lines: Sequence[str]) -> Finding | None:
    """Find an out-of-memory error, and derive from its numbers which process filled the GPU's memory.

    NODE_VRAM: other processes did, so the machine has less than it promised. NODE_TOO_SMALL: the job did alone, and
    may need a larger GPU.
    """
    for line in lines:
        said = OUT_OF_MEMORY.search(line)
        if said is None:
            continue
        total, free, own = (float(said[part]) * UNITS[said[f"{part}_unit"]] for part in ("total", "free", "own"))
        crowded = total - free - own > OTHERS_BYTES
        return Finding(reason=Reason.NODE_VRAM if crowded else Reason.NODE_TOO_SMALL, evidence=line)
    return None


def _squeezed(text: str) -> str:
    """Letters and digits alone, in lower case: however a library cuts, quotes or spells a text, this stays."""
    return "".join(character for character in text.casefold() if character.isalnum())
