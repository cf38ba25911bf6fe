"""What a process uses, from /proc: CPU seconds and resident bytes."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """CPU seconds so far, user and system, and resident bytes now."""

    cpu_s: float
    rss_bytes: int


def usage_of(pid: int, *, with_children: bool = False) -> Usage:
    """Of one process; `with_children` adds its direct children, those that have ended included.

    The resident bytes of children are added up as they are, so that what they share counts more than once.
    """
    fields = _fields(pid)
    usages = [_usage(fields, with_ended=with_children)]
    if with_children:
        usages += [_usage(child, with_ended=True) for _, child in _children(pid)]
    return Usage(cpu_s=sum(each.cpu_s for each in usages), rss_bytes=sum(each.rss_bytes for each in usages))


def children_cpu_s(pid: int) -> dict[int, float]:
    """CPU seconds so far of each direct child that lives, by process id."""
    return {child: _usage(fields, with_ended=True).cpu_s for child, fields in _children(pid)}


def tree_cpu_s(pid: int) -> float:
    """CPU seconds so far of a process and all that came from it, those that have ended included."""
    try:
        own_s = _usage(_fields(pid), with_ended=True).cpu_s
    except OSError:
        return 0.0  # it has just ended
    return own_s + sum(tree_cpu_s(child) for child, _ in _children(pid))


def busy_s() -> float:
    """CPU seconds that the whole machine has worked so far, for whomever."""
    ticks = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return (sum(ticks[:8]) - ticks[3] - ticks[4]) * _TICK_S  # but for idle and iowait; guests are in user already


def _children(pid: int) -> Iterator[tuple[int, list[str]]]:
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                fields = _fields(int(directory.name))
            except OSError:
                continue  # it has just ended
            if int(fields[1]) == pid:
                yield int(directory.name), fields


def _fields(pid: int) -> list[str]:
    """The fields after the command's name, which may hold blanks: state, ppid, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _usage(fields: list[str], *, with_ended: bool) -> Usage:
    ticks = sum(int(each) for each in fields[11 : 15 if with_ended else 13])
    return Usage(cpu_s=ticks * _TICK_S, rss_bytes=int(fields[21]) * _PAGE_BYTES)
