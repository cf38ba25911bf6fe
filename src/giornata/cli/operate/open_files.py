"""Files that the server's process may open: each connection is one."""

import logging
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger("giornata.limits")

OWN_FILES = 512
"""Files that a server opens besides its connections: database, objects, storage, logs, webhooks, inspectors."""
FEWEST_CONNECTIONS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFiles:
    """The limits of this process (RLIMIT_NOFILE). `raise_to` sets the soft one."""

    soft: int
    hard: int
    raise_to: Callable[[int], None]


def open_files() -> OpenFiles:
    """Return the limits of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def raise_to(files: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))

    return OpenFiles(soft=_bounded(soft), hard=_bounded(hard), raise_to=raise_to)


def files_of(process: int) -> int | None:
    """Return how many files another process may open now; None where that cannot be told."""
    if sys.platform != "linux":
        return None
    try:
        return _bounded(resource.prlimit(process, resource.RLIMIT_NOFILE)[0])
    except OSError:  # it has ended, or is somebody else's
        return None


def _bounded(files: int) -> int:
    return 2**30 if files == resource.RLIM_INFINITY else files


def connections_of(wanted: int, limits: OpenFiles) -> int:
    """Return how many connections this process can take: `wanted`, or as many as it may open files for.

    The soft limit is raised as far as is needed and the hard one allows. A lower hard limit is logged with what to
    do.
    """
    needed, files = wanted + OWN_FILES, limits.soft
    if files < needed and files < limits.hard:
        files = min(needed, limits.hard)
        limits.raise_to(files)
    if files >= needed:
        return wanted
    taken = connections_within(files)
    log.warning(
        "the server takes %d connections, not the %d of max_connections: its process may open %d files and needs %d; "
        "raise the hard limit (ulimit -Hn %d, or LimitNOFILE=%d of the systemd unit), or lower max_connections",
        *(taken, wanted, files, needed, needed, needed),
    )
    return taken


def connections_within(files: int) -> int:
    """Return how many connections a server takes that may open so many files."""
    return max(files - OWN_FILES, FEWEST_CONNECTIONS)
