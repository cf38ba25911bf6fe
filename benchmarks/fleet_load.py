"""One server process under the calls of a large fleet: `python -m benchmarks.fleet_load`.

A real `giornata server` with its defaults on a PostgreSQL, all on this machine. Nodes, each with a running job, are
put into the database by SQL; from then on everything is HTTP over 127.0.0.1, on a new connection for each call as an
agent's comes after half a minute of silence: a beat every 30 s, and (unless --beats-only) a checkpoint asked for,
uploaded and committed, jobs completed and claimed, and idle nodes that wait for work in long polls. The generator is
one process with asyncio and requests by hand; its own CPU and how late it begins calls are shown: it is not the
bottleneck while its lag is small beside the latencies. Prints a table for each size of fleet, then one JSON line.
Mark: at 10,000 nodes p99 of beats below 0.5 s, and no error of any call.
"""

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.rig.agents import Agents, Pace
from benchmarks.rig.backlog import BenchmarkQueue
from benchmarks.rig.databases import PostgresOnSocket, postgres
from benchmarks.rig.figures import conclude, latencies_ms, machine
from benchmarks.rig.processes import Usage, busy_s, usage_of
from benchmarks.rig.running_fleet import begin_fleet
from benchmarks.rig.server import BenchmarkServer, server

LEASE_S = 90.0
BEAT_S = 30.0
BEATS_P99_MARK_MS = 500.0
MARKED_NODES = 10_000


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", nargs="+", type=int, default=[1_000, 5_000, MARKED_NODES])
    parser.add_argument("--seconds", type=float, default=45.0, help="how long each fleet calls")
    parser.add_argument("--beats-only", action="store_true", help="no checkpoints, no jobs that end, nobody idle")
    parser.add_argument("--checkpoint-every", type=float, default=300.0, help="seconds between a node's checkpoints")
    parser.add_argument("--job", type=float, default=1200.0, help="seconds that a job lasts")
    parser.add_argument("--idle", type=float, default=0.02, help="share of nodes that wait for work")
    parser.add_argument("--queued", type=int, default=10_000, help="jobs that wait for nodes")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; the figures mean little")
    options = parser.parse_args(arguments)
    if options.quick:
        options.nodes, options.seconds, options.queued = [60], 5.0, 200
        options.checkpoint_every, options.job, options.idle = 10.0, 20.0, 0.1
    return options


def measure(nodes: int, options: argparse.Namespace, own: PostgresOnSocket, home: Path) -> dict[str, object]:
    """One fleet's calls."""
    url = own.new_database()
    with server(home / f"fleet-{nodes}", url, lease_s=LEASE_S) as started:
        queue = BenchmarkQueue(url)
        queue.fill_to(options.queued)
        held = begin_fleet(url, nodes)
        pace = Pace(
            beat_s=5.0 if options.quick else BEAT_S,
            checkpoint_s=0.0 if options.beats_only else options.checkpoint_every,
            job_s=0.0 if options.beats_only else options.job,
        )
        agents = Agents(started, held, pace)
        rows, before = queue.row_counts(), _usages(started, own)
        began_s, own_cpu_s, all_cpu_s = time.monotonic(), time.process_time(), busy_s()
        idle = 0 if options.beats_only else round(nodes * options.idle)
        asyncio.run(agents.run(options.seconds, idle=idle))
        wall_s, own_cpu_s, all_cpu_s = (
            time.monotonic() - began_s,
            time.process_time() - own_cpu_s,
            busy_s() - all_cpu_s,
        )
        after, now = _usages(started, own), queue.row_counts()
    cores = {name: round((after[name].cpu_s - before[name].cpu_s) / wall_s, 2) for name in before}
    cores["generator"] = round(own_cpu_s / wall_s, 2)
    cores["others"] = round(all_cpu_s / wall_s - sum(cores.values()), 2)
    return {
        "nodes": nodes,
        "seconds": round(wall_s, 1),
        "calls": {
            name: {"per_s": round(len(each) / wall_s, 1), "count": len(each), **latencies_ms(each)}
            for name, each in sorted(agents.counts.latencies_s.items())
        },
        "errors": dict(agents.counts.errors),
        "generator_lag_ms": latencies_ms(agents.counts.lags_s),
        "cores": cores,
        "server_rss_mib": [round(each["server"].rss_bytes / 2**20) for each in (before, after)],
        "rows": {table: [rows[table], now[table]] for table in now if now[table] != rows[table]},
    }


def _usages(started: BenchmarkServer, own: PostgresOnSocket) -> dict[str, Usage]:
    return {"server": started.usage, "postgres": usage_of(own.postmaster_pid, with_children=True)}


def show(figures: dict[str, object]) -> None:
    print(f"{figures['nodes']} nodes, {figures['seconds']} s; errors: {figures['errors'] or 'none'}")
    for name, call in figures["calls"].items():  # type: ignore[attr-defined]
        words = "  ".join(f"{key} {call[key]:8.1f}" for key in ("p50", "p95", "p99", "max"))
        print(f"  {name:14} {call['per_s']:7.1f}/s   {words} ms")
    print(f"  cores {figures['cores']}, generator's lag {figures['generator_lag_ms']} ms")
    print(f"  server's RSS {figures['server_rss_mib']} MiB, rows {figures['rows']}")


def met(figures: dict[str, object]) -> bool:
    beats = figures["calls"].get("heartbeat", {})  # type: ignore[attr-defined]
    return not figures["errors"] and beats.get("p99", float("inf")) < BEATS_P99_MARK_MS


def main(arguments: list[str]) -> int:
    options, about, fleets = options_of(arguments), machine(), []
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # inherited by the server
    with tempfile.TemporaryDirectory(prefix="giornata-load-") as name, postgres() as own:
        for nodes in options.nodes:
            fleets.append(measure(nodes, options, own, Path(name)))
            show(fleets[-1])
    mark = next((met(each) for each in fleets if each["nodes"] == MARKED_NODES), None)
    print(f"mark: p99 of beats below {BEATS_P99_MARK_MS:g} ms and no error at {MARKED_NODES} nodes: {mark}")
    result = {"benchmark": "fleet_load", "machine": about, "postgres": own.version, "quick": options.quick}
    conclude(result | {"beats_only": options.beats_only, "fleets": fleets, "met": mark})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
