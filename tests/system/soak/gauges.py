"""What grows: memory, open files and threads of processes, rows, and files in storage."""

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg
from tests.fixtures.files_below import files_below
from tests.system.soak.installation import SoakInstallation

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TABLES = (
    *("jobs", "attempts", "events", "ledger", "nodes", "checkpoints", "artifacts", "blobs", "uploads"),
    *("metrics", "logs", "strikes", "bans", "idempotency", "caches"),
)
# What may differ between two thirds of a soak in which nothing grows, beside a tenth of it.
SLACK = {"rss_mib": 6.0, "files": 12.0, "threads": 8.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """One process; `cpu_s` since its start, those of its children that have ended included."""

    cpu_s: float
    rss_mib: float
    files: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeSample:
    """One moment."""

    at_s: float
    processes: Mapping[str, Gauge]
    rows: Mapping[str, int]
    ended: int  # jobs
    storage_files: int
    storage_bytes: int
    temporary_files: int


def gauge(pid: int) -> Gauge | None:
    """Of a process; None when there is none, or it may not be looked at."""
    with suppress(OSError, ValueError):
        place = Path(f"/proc/{pid}")
        fields = (place / "stat").read_text().rpartition(")")[2].split()
        return Gauge(
            cpu_s=round(sum(map(int, fields[11:15])) * _TICK_S, 2),
            rss_mib=round(int(fields[21]) * _PAGE_BYTES / 2**20, 1),
            threads=int(fields[17]),
            files=len(list((place / "fd").iterdir())),
        )
    return None


def sample(
    installation: SoakInstallation, pids: Mapping[str, int], began_s: float, before: GaugeSample | None
) -> GaugeSample:
    """Now. While the database is away its rows are those of the sample before."""
    sizes = [size for path in files_below(installation.blobs) if (size := _size(path)) is not None]
    try:
        with psycopg.connect(installation.postgres.url, connect_timeout=5) as connection:
            asked = [(table, connection.execute(f"SELECT count(*) FROM {table}")) for table in TABLES]  # noqa: S608
            rows = {table: int((cursor.fetchone() or [0])[0]) for table, cursor in asked}
            ended = connection.execute("SELECT count(*) FROM jobs WHERE ended_at_ms IS NOT NULL").fetchone()
    except psycopg.Error:
        rows, ended = (dict(before.rows), (before.ended,)) if before else ({}, (0,))
    found = {name: gauge(pid) for name, pid in pids.items()}
    return GaugeSample(
        at_s=round(time.monotonic() - began_s, 1),
        processes={name: it for name, it in found.items() if it is not None},
        rows=rows,
        ended=int((ended or (0,))[0]),
        storage_files=len(sizes),
        storage_bytes=sum(sizes),
        temporary_files=sum(1 for _ in files_below(installation.temporary)),
    )


def _size(path: Path) -> int | None:
    with suppress(OSError):
        return path.stat().st_size if path.is_file() else None
    return None


def growth(samples: Sequence[GaugeSample], watched: Sequence[str]) -> dict[str, object]:
    """The middle third beside the last, and what grew.

    Memory, open files and threads of the processes in `watched`, which lived all the time: the median of the last
    third may exceed that of the middle one by a tenth and the SLACK. Rows and objects in storage are kept for ever
    with their job, as documented: what may not grow is how many there are for each job that ended.
    """
    third = len(samples) // 3
    if third == 0:
        return {"samples": len(samples), "grew": []}
    middle, last = samples[third : 2 * third], samples[2 * third :]
    grew, shown = [], {}
    for name in watched:
        for what, slack in SLACK.items():
            was, is_ = (_median(part, name, what) for part in (middle, last))
            if was is None or is_ is None:
                continue
            shown[f"{name}, {what}"] = [was, is_]
            if is_ > was * 1.1 + slack:
                grew.append(f"{name}, {what}: {was} to {is_}")
    for table in (*TABLES, "objects in storage"):
        was, is_ = (statistics.median(_for_each_job(it, table) for it in part) for part in (middle, last))
        shown[f"{table} for each job that ended"] = [round(was, 2), round(is_, 2)]
        # What belongs to jobs that are still open counts on top, and is most at the beginning.
        if is_ > was * 1.1 + 0.5:
            grew.append(f"{table} for each job that ended: {was:.2f} to {is_:.2f}")
    return {"samples": len(samples), "middle_and_last_third": shown, "grew": grew}


def _median(part: Sequence[GaugeSample], name: str, what: str) -> float | None:
    values = [getattr(it.processes[name], what) for it in part if name in it.processes]
    return statistics.median(values) if values else None


def _for_each_job(it: GaugeSample, table: str) -> float:
    amount = it.storage_files if table == "objects in storage" else it.rows.get(table, 0)
    return amount / max(1, it.ended)


def cores(samples: Sequence[GaugeSample]) -> dict[str, float]:
    """Share of a core that each process used that lived from the first sample to the last."""
    first, last = samples[0], samples[-1]
    took_s = max(1.0, last.at_s - first.at_s)
    both = first.processes.keys() & last.processes.keys()
    used = {name: last.processes[name].cpu_s - first.processes[name].cpu_s for name in sorted(both)}
    return {name: round(cpu_s / took_s, 3) for name, cpu_s in used.items() if cpu_s >= 0}


def described(it: GaugeSample) -> str:
    """A line for whoever watches."""
    processes = ", ".join(
        f"{name} {one.rss_mib:g} MiB {one.files} files {one.threads} threads" for name, one in it.processes.items()
    )
    rows = ", ".join(f"{table} {count}" for table, count in it.rows.items() if count)
    storage = f"{it.storage_files} objects, {it.storage_bytes} bytes, {it.temporary_files} temporary"
    return f"{it.at_s:6.0f} s  {it.ended} jobs ended; {processes}; {rows}; {storage}"


def as_json(it: GaugeSample) -> dict[str, object]:
    return asdict(it)
