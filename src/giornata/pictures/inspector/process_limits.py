"""Limits that a process takes upon itself before it decodes a stranger's picture."""

import math
import sys
import time
from contextlib import suppress

REPORT_BYTES = 1 << 20  # what the process may write into any one file, its stderr included


def take_limits(*, memory_bytes: int) -> None:
    """Limit the memory and the file sizes of this process, and let it leave no core file. Systems without such limits
    (Windows) are left as they are."""
    if sys.platform == "win32":
        return
    import resource

    wanted = (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, REPORT_BYTES),
        (resource.RLIMIT_CORE, 0),
    )
    for which, value in wanted:
        try:
            resource.setrlimit(which, (value, value))
        except (ValueError, OSError):  # macOS refuses RLIMIT_AS; a lower hard limit is already in force
            continue


def allow_cpu(cpu_s: int) -> None:
    """Give the next picture `cpu_s` seconds of processor time; more than that kills the process (SIGXCPU)."""
    if sys.platform == "win32":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(time.process_time()) + cpu_s
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def decode_avif_in_one_thread() -> None:
    """Make Pillow decode AVIF in one thread. A thread for each core would eat up the address space: malloc sets some
    of it aside for every thread."""
    with suppress(ImportError):  # Pillow before 11.3 reads no AVIF
        from PIL import AvifImagePlugin

        AvifImagePlugin.DEFAULT_MAX_THREADS = 1
