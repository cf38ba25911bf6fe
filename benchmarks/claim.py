"""Claims and heartbeats through HTTP, at queues of very different length: `python -m benchmarks.claim`.

Starts a real server process for each cell (database × depth of the queue), fills the queue by SQL, and sends bursts
of claims, then of heartbeats, over sockets of 127.0.0.1. A repetition goes through all depths before the next
begins, and the queue is filled up again between bursts, so that depths are compared under like conditions: what
matters is the ratio of the p95 at the deepest queue to that at the shallowest. Then come whole lives of jobs that do
nothing (enqueue, fetch, finish) on the same PostgreSQL: ours through HTTP, ours as a library, and two other queues
from the package index when --peers-python names an interpreter that has them:

    python -m venv /tmp/peers && /tmp/peers/bin/pip install procrastinate pgqueuer asyncpg 'psycopg[binary,pool]'
    python -m benchmarks.claim --peers-python /tmp/peers/bin/python

With `--against COMMIT` it plays this version and that one by turns instead, at a queue of 1,000 with 16 and with 64
clients unless told otherwise, and whole lives over HTTP; it prints the ratio of the rates, pair by pair,
and fails where the median is below 1.

Clients, server and database share the machine. Prints tables, then one JSON line. Marks: 1,000 claims per second in
one server process; p95 at the deepest queue within 1.5 times that at the shallowest.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.rig.against import against
from benchmarks.rig.backlog import BenchmarkQueue
from benchmarks.rig.bursts import Burst, beat_burst, claim_burst
from benchmarks.rig.databases import PostgresOnSocket, postgres
from benchmarks.rig.figures import conclude, latencies_ms, machine, percentile, spread, spread_words
from benchmarks.rig.job_lifecycles import PEERS, Life, by_use_cases, of_peer, over_http
from benchmarks.rig.server import BenchmarkServer, server

LEASE_S = 3600.0
CLAIMS_PER_S_MARK = 1000.0
FLATNESS_MARK = 1.5


@dataclass(slots=True, kw_only=True)
class ClaimCell:
    """One server on one queue, and what was measured there, by number of clients."""

    database: str
    depth: int
    server: BenchmarkServer
    queue: BenchmarkQueue
    claims: dict[int, list[Burst]] = field(default_factory=dict)
    beats: dict[int, list[Burst]] = field(default_factory=dict)

    def measure(self, count: int, clients: int, *, keep: bool) -> None:
        self.queue.fill_to(self.depth)
        claims, leases = claim_burst(self.server, count, clients)
        beats = beat_burst(self.server, leases, clients)
        if keep:
            self.claims.setdefault(clients, []).append(claims)
            self.beats.setdefault(clients, []).append(beats)


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--databases", nargs="+", choices=("postgres", "sqlite"), default=["postgres", "sqlite"])
    parser.add_argument("--against", metavar="COMMIT", help="play that version and this one by turns")
    parser.add_argument("--depths", nargs="+", type=int, help="default: 1000 100000 1000000; with --against 1000")
    parser.add_argument("--clients", nargs="+", type=int, help="default: 1 16; with --against 16 64")
    parser.add_argument("--claims", type=int, default=500, help="in one burst; fewer than the smallest depth")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--lives", type=int, default=1_000, help="jobs that live a whole life in each queue; 0: none")
    parser.add_argument("--peers-python", type=Path, help="interpreter with procrastinate and pgqueuer")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; the figures mean little")
    options = parser.parse_args(arguments)
    options.depths = options.depths or ([1_000] if options.against else [1_000, 100_000, 1_000_000])
    options.clients = options.clients or ([16, 64] if options.against else [1, 16])
    if options.quick:
        options.depths, options.clients = [100, 1_000], [4]
        options.claims, options.repetitions, options.lives = 40, 1, 40
    if options.claims > min(options.depths):
        parser.error("--claims: a burst may not be longer than the shortest queue")
    return options


def measure_database(
    database: str, options: argparse.Namespace, own: PostgresOnSocket, home: Path
) -> dict[str, object]:
    """All depths on one kind of database."""
    with contextlib.ExitStack() as stack:
        cells = []
        for depth in options.depths:
            data = home / f"{database}-{depth}"
            url = own.new_database() if database == "postgres" else f"sqlite:///{data / 'giornata.db'}"
            started = stack.enter_context(server(data, url, lease_s=LEASE_S))
            cells.append(ClaimCell(database=database, depth=depth, server=started, queue=BenchmarkQueue(url)))
        for cell in cells:  # warms connections and plans, and is not kept
            cell.measure(options.claims, max(options.clients), keep=False)
        before = [(cell.server.usage.rss_bytes, cell.queue.row_counts()) for cell in cells]
        for repetition in range(options.repetitions):
            for clients in options.clients:
                for cell in cells if repetition % 2 else reversed(cells):
                    cell.measure(options.claims, clients, keep=True)
        return {
            "cells": [figures(cell, clients) for clients in options.clients for cell in cells],
            "flatness": [flatness(cells, clients) for clients in options.clients],
            "growth": [growth(cell, *was) for cell, was in zip(cells, before, strict=True)],
        }


def figures(cell: ClaimCell, clients: int) -> dict[str, object]:
    claims, beats = cell.claims[clients], cell.beats[clients]
    return {
        "database": cell.database,
        "depth": cell.depth,
        "clients": clients,
        "claims_per_s": spread([each.rate_per_s for each in claims], 0),
        "claim_ms": latencies_ms([each for burst in claims for each in burst.latencies_s]),
        "beats_per_s": spread([each.rate_per_s for each in beats], 0),
        "beat_ms": latencies_ms([each for burst in beats for each in burst.latencies_s]),
        # At a share near 1 of a core the server's process is the bottleneck, and not those who ask.
        "server_cores": round(statistics.mean(each.server_cpu_s / each.wall_s for each in claims), 2),
        # Says more than the rates where others use the machine, too.
        "server_cpu_ms": {"claim": _cpu_ms(claims), "beat": _cpu_ms(beats)},
        "client_cores": round(statistics.mean(each.client_cpu_s / each.wall_s for each in claims), 2),
    }


def _cpu_ms(bursts: list[Burst]) -> float:
    """CPU milliseconds of the server for one request."""
    return round(sum(each.server_cpu_s for each in bursts) / sum(len(each.latencies_s) for each in bursts) * 1000, 2)


def flatness(cells: list[ClaimCell], clients: int) -> dict[str, object]:
    """The p95 of claims at the deepest queue over that at the shallowest, repetition by repetition."""

    def ratios(select: str) -> dict[str, float]:
        shallow, deep = (getattr(cell, select)[clients] for cell in (cells[0], cells[-1]))
        p95 = [[percentile(burst.latencies_s, 0.95) for burst in bursts] for bursts in (deep, shallow)]
        return spread([over / under for over, under in zip(*p95, strict=True)])

    return {
        "clients": clients,
        "depths": [cells[-1].depth, cells[0].depth],
        "claims": ratios("claims"),
        "beats": ratios("beats"),
    }


def growth(cell: ClaimCell, rss_bytes: int, rows: dict[str, int]) -> dict[str, object]:
    now = cell.queue.row_counts()
    return {
        "depth": cell.depth,
        "rss_mib": [round(each / 2**20) for each in (rss_bytes, cell.server.usage.rss_bytes)],
        "rows": {table: [rows[table], now[table]] for table in now if now[table] != rows[table]},
    }


def lives(options: argparse.Namespace, own: PostgresOnSocket, home: Path) -> dict[str, list[Life]]:
    """Each queue's jobs, repetition by repetition, the queues in turn."""
    clients, found = max(options.clients), {}
    for repetition in range(min(3, options.repetitions)):
        data = home / f"lives-{repetition}"
        with server(data, own.new_database(), lease_s=LEASE_S) as started:
            found.setdefault("giornata, HTTP", []).append(over_http(started, options.lives, clients))
        library = by_use_cases(data / "library", own.new_database(), options.lives, clients)
        found.setdefault("giornata, library", []).append(library)
        for name in PEERS if options.peers_python else ():
            life = of_peer(options.peers_python, name, own.new_database(), options.lives, clients)
            if life is not None:
                found.setdefault(name, []).append(life)
    if not options.peers_python:
        print("SKIPPED procrastinate, pgqueuer: --peers-python was not given")
    return found


def show(measured: dict[str, dict[str, object]]) -> None:
    head = f"{'database':9} {'queued':>9} {'clients':>7} {'claims/s':>22} {'p50':>7} {'p95':>7} {'p99':>7} ms"
    print(f"{head} {'beats/s':>22} {'p95':>7} {'p99':>7} ms  cores: server, clients")
    for each in measured.values():
        for row in each["cells"]:  # type: ignore[attr-defined]
            claim, beat = row["claim_ms"], row["beat_ms"]
            print(
                f"{row['database']:9} {row['depth']:9} {row['clients']:7} {spread_words(row['claims_per_s']):>22} "
                f"{claim['p50']:7.1f} {claim['p95']:7.1f} {claim['p99']:7.1f}    "
                f"{spread_words(row['beats_per_s']):>22} {beat['p95']:7.1f} {beat['p99']:7.1f}     "
                f"{row['server_cores']:.2f}, {row['client_cores']:.2f}; server's CPU, ms: {row['server_cpu_ms']}"
            )
    for database, each in measured.items():
        for row in each["flatness"]:  # type: ignore[attr-defined]
            words = ", ".join(f"{name} {spread_words(row[name])}" for name in ("claims", "beats"))
            print(f"{database}, {row['clients']} clients: p95 at {row['depths'][0]} over {row['depths'][1]}: {words}")
        for row in each["growth"]:  # type: ignore[attr-defined]
            print(f"{database}, {row['depth']} queued: RSS {row['rss_mib']} MiB, rows {row['rows']}")


def life_figures(found: dict[str, list[Life]]) -> dict[str, dict[str, dict[str, float]]]:
    shown = {}
    for name, all_lives in found.items():
        shown[name] = {
            "enqueued_per_s": spread([each["done"] / each["enqueue_s"] for each in all_lives], 0),
            "worked_per_s": spread([each["done"] / each["work_s"] for each in all_lives], 0),
            "lives_per_s": spread([each["done"] / (each["enqueue_s"] + each["work_s"]) for each in all_lives], 0),
        }
        words = ", ".join(f"{key.replace('_', ' ')} {spread_words(value)}" for key, value in shown[name].items())
        print(f"{name:18} {words}")
    return shown


def best_rate(measured: dict[str, dict[str, object]]) -> float:
    """The median claims per second at the deepest queue and with most clients, of the better database."""
    deepest = [each["cells"][-1] for each in measured.values()]  # type: ignore[index]
    return max(row["claims_per_s"]["median"] for row in deepest)


def main(arguments: list[str]) -> int:
    options, about = options_of(arguments), machine()
    if options.against:
        return against(options, about)
    with tempfile.TemporaryDirectory(prefix="giornata-load-") as name, postgres() as own:
        measured = {each: measure_database(each, options, own, Path(name)) for each in options.databases}
        show(measured)
        whole = life_figures(lives(options, own, Path(name))) if options.lives else {}
    flat = {
        name: [row["claims"]["median"] for row in each["flatness"]]  # type: ignore[attr-defined]
        for name, each in measured.items()
    }
    marks = {
        "claims_per_s": best_rate(measured) >= CLAIMS_PER_S_MARK,
        "flat": max(max(each) for each in flat.values()) <= FLATNESS_MARK,
    }
    print(
        f"marks: {CLAIMS_PER_S_MARK:g} claims/s {marks['claims_per_s']}, flat within {FLATNESS_MARK} {marks['flat']}"
    )
    conclude(
        {
            "benchmark": "claim",
            "machine": about,
            "postgres": own.version,
            "quick": options.quick,
            "burst": options.claims,
            "repetitions": options.repetitions,
            "measured": measured,
            "lives": whole,
            "marks": marks,
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
