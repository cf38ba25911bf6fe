"""Pictures through HTTP, as leases of many and as a job for each: `python -m benchmarks.pictures`.

Starts a real server process on a PostgreSQL of its own, fills the queue by SQL, and plays nodes without GPUs: claim,
upload URLs, results that complete the lease. Object storage is a folder that nodes write into. Its parts, each alone
by --part:

rates    a job per picture, and leases of 1, 4 and 16: pictures a second, write-ahead log and disk of a picture from
         its insertion to its end. The log includes full pages after a checkpoint.
statements leases of 16 of one client, and of --clients at once: statements a picture by all that the server does
         meanwhile, its loops too, without BEGIN and COMMIT; and transactions a picture. Those of a lease alone are
         counted by tests (tests/contract/store/test_picture_ceilings.py).
depths   the claim of 16 pictures at queues of --depths: the p95 at the deepest over that at the shallowest.
beside   claims and heartbeats of training alone, while a node draws, and while a node does jobs with as many
         requests: the ratios of the medians to alone. The node beside is a process of the lowest priority, so that
         it takes no processor time from the server and no interpreter from the clients. A ratio that jobs beside
         have, too, is the cost of any requests on this machine, and not that of pictures.

Clients, server and database share the machine. Prints tables, then one JSON line. Marks with leases of 16: 8 times
the pictures a second of a job per picture and 400 a second; 0.5 statements, 4 KB of log and 1.5 KB of disk for a
picture with all clients; a p95 within 1.5; training within 1.2 of alone.
"""

import argparse
import statistics
import sys
import tempfile
from contextlib import ExitStack, nullcontext
from pathlib import Path

from benchmarks.rig.backlog import BenchmarkQueue
from benchmarks.rig.bursts import beat_burst, claim_burst, run_clients
from benchmarks.rig.databases import PostgresOnSocket, postgres
from benchmarks.rig.drawing import Drawing
from benchmarks.rig.figures import conclude, latencies_ms, machine, percentile, spread, spread_words
from benchmarks.rig.node_beside import NodeLoad, node_beside
from benchmarks.rig.picture_backlog import PictureQueue
from benchmarks.rig.server import BenchmarkServer, server
from benchmarks.rig.statement_log import statements_sent
from benchmarks.rig.wire import Wire

LEASE_S = 3600.0
LEASES = (1, 4, 16)
SPEEDUP_MARK, PER_S_MARK, LOG_BYTES_MARK, DISK_BYTES_MARK = 8.0, 400.0, 4096, 1536
FLATNESS_MARK, BESIDE_MARK = 1.5, 1.2
STATEMENTS_MARK = 0.5
PARTS = ("rates", "statements", "depths", "beside")


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--pictures", type=int, default=8_000, help="in each repetition of a lease size")
    parser.add_argument("--jobs", type=int, default=500, help="jobs of one picture in each repetition")
    parser.add_argument("--depths", nargs="+", type=int, default=[10_000, 10_000_000])
    parser.add_argument("--claims", type=int, default=200, help="in a burst at each depth")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=3)
    return parser.parse_args(arguments)


def rates(options: argparse.Namespace, own: PostgresOnSocket, home: Path) -> dict[str, object]:
    """Pictures a second, log and disk, for each lease size and for a job per picture."""
    data, url = home / "rates", own.new_database()
    with server(data, url, lease_s=LEASE_S) as started:
        drawing, pictures, jobs = Drawing(started, data), PictureQueue(url), BenchmarkQueue(url)
        found: dict[str, list[dict[str, float]]] = {}
        for repetition in range(options.repetitions + 1):
            before_log, before_disk = pictures.log_bytes(), pictures.disk_bytes()
            jobs.fill_to(options.jobs)
            burst = run_clients(
                started, options.jobs, options.clients, lambda wire, client: drawing.draw_job(wire, client) and None
            )
            _note(found, "job", options.jobs, burst.wall_s, pictures, before_log, before_disk, keep=repetition > 0)
            for most in LEASES:
                count = options.pictures if most > 1 else options.pictures // 4
                before_log, before_disk = pictures.log_bytes(), pictures.disk_bytes()
                pictures.fill_to(count)
                waiting = pictures.queued()
                burst = run_clients(started, -(-waiting // most), options.clients, _draw(drawing, most))
                drawn = waiting - pictures.queued()
                _note(
                    found,
                    f"lease of {most}",
                    drawn,
                    burst.wall_s,
                    pictures,
                    before_log,
                    before_disk,
                    keep=repetition > 0,
                )
                _draw_the_rest(started, drawing)
    shown = {name: _summary(rows) for name, rows in found.items()}
    for name, row in shown.items():
        words = ", ".join(f"{key.replace('_', ' ')} {spread_words(value)}" for key, value in row.items())
        print(f"{name:12} {words}")
    return shown


def _draw(drawing: Drawing, most: int):  # type: ignore[no-untyped-def]
    def draw(wire: Wire, client: int) -> None:
        drawing.draw_lease(wire, client, most)

    return draw


def _draw_the_rest(started: BenchmarkServer, drawing: Drawing) -> None:
    with Wire(started.host, started.port) as wire:
        while drawing.draw_lease(wire, 0, 64):
            pass


def _note(  # noqa: PLR0917
    found: dict[str, list[dict[str, float]]],
    name: str,
    count: int,
    wall_s: float,
    queue: PictureQueue,
    before_log: int,
    before_disk: int,
    *,
    keep: bool,
) -> None:
    if keep:
        row = {
            "per_s": count / wall_s,
            "log_bytes": (queue.log_bytes() - before_log) / count,
            "disk_bytes": (queue.disk_bytes() - before_disk) / count,
        }
        found.setdefault(name, []).append(row)


def _summary(rows: list[dict[str, float]], digits: int = 0) -> dict[str, dict[str, float]]:
    return {name: spread([row[name] for row in rows], digits) for name in rows[0]}


def statements(options: argparse.Namespace, own: PostgresOnSocket, home: Path) -> dict[str, object]:
    """Statements and transactions of a picture in leases of 16, by the number of clients. No speed is measured."""
    data, url = home / "statements", own.new_database()
    found: dict[str, list[dict[str, float]]] = {}
    with server(data, url, lease_s=LEASE_S) as started:
        drawing, pictures = Drawing(started, data), PictureQueue(url)
        for repetition in range(options.repetitions + 1):
            for clients in (1, options.clients):
                pictures.fill_to(options.pictures)
                waiting = pictures.queued()
                with statements_sent(own) as sent:
                    run_clients(started, -(-waiting // 16), clients, _draw(drawing, 16))
                drawn = waiting - pictures.queued()
                row = {"statements": sent.statements / drawn, "transactions": sent.transactions / drawn}
                if repetition:
                    found.setdefault(f"clients: {clients}", []).append(row)
    shown = {name: _summary(rows, 3) for name, rows in found.items()}
    for name, row in shown.items():
        words = ", ".join(f"{key} {spread_words(value)}" for key, value in row.items())
        print(f"{name:12} a picture: {words}")
    return shown


def depths(options: argparse.Namespace, own: PostgresOnSocket, home: Path) -> dict[str, object]:
    """The claim of 16 pictures at each depth, by turns, so that other load meets all of them; no picture is drawn."""
    found: dict[str, list[list[float]]] = {str(depth): [] for depth in options.depths}
    with ExitStack() as servers:
        queues = {depth: _queue_at(servers, own, home / f"depth-{depth}") for depth in options.depths}
        for repetition in range(options.repetitions + 1):
            for depth, (started, drawing, queue) in queues.items():
                queue.fill_to(depth)
                burst = run_clients(started, options.claims, options.clients, _claim(drawing))
                if repetition:
                    found[str(depth)].append(burst.latencies_s)
    for depth, bursts in found.items():
        print(f"{depth:>10} queued: claim {latencies_ms([each for burst in bursts for each in burst])} ms")
    shallow, deep = found[str(options.depths[0])], found[str(options.depths[-1])]
    ratios = [percentile(over, 0.95) / percentile(under, 0.95) for over, under in zip(deep, shallow, strict=True)]
    print(f"p95 at {options.depths[-1]} over {options.depths[0]}: {spread_words(spread(ratios))}")
    claims = {depth: latencies_ms([each for rep in reps for each in rep]) for depth, reps in found.items()}
    return {"claim_ms": claims, "flatness": spread(ratios)}


def _queue_at(servers: ExitStack, own: PostgresOnSocket, data: Path) -> tuple[BenchmarkServer, Drawing, PictureQueue]:
    url = own.new_database()
    started = servers.enter_context(server(data, url, lease_s=LEASE_S))
    return started, Drawing(started, data), PictureQueue(url)


def _claim(drawing: Drawing):  # type: ignore[no-untyped-def]
    def claim(wire: Wire, client: int) -> None:
        # No lease is ended, and a process may hold a few.
        if drawing.claim_pictures(wire, client, 16, process=next(drawing.processes)) is None:
            raise RuntimeError("no picture was left")

    return claim


def beside(options: argparse.Namespace, own: PostgresOnSocket, home: Path) -> dict[str, object]:
    """Claims and beats of training by few clients, by turns alone, while a node draws, and while one does jobs."""
    data, url = home / "beside", own.new_database()
    found: dict[str, list[float]] = {}
    with server(data, url, lease_s=LEASE_S) as started:
        pictures, jobs = PictureQueue(url), BenchmarkQueue(url)
        for repetition in range(options.repetitions + 1):
            for work in _turned((None, *NodeLoad), repetition):
                jobs.fill_to(2000)
                pictures.fill_to(20_000)
                with nullcontext() if work is None else node_beside(started, data, work):
                    claims, leases = claim_burst(started, options.claims, 2)
                    beats = beat_burst(started, leases, 2)
                for name, burst in (("claim", claims), ("beat", beats)):
                    if repetition:
                        of = f"{name} alone" if work is None else f"{name} beside {work}"
                        found.setdefault(of, []).append(statistics.median(burst.latencies_s) * 1000)
    ratios = {
        f"{name} beside {work}": _over(found[f"{name} beside {work}"], found[f"{name} alone"])
        for name in ("claim", "beat")
        for work in NodeLoad
    }
    for name, ratio in ratios.items():
        print(f"training's {name} over alone, medians: {spread_words(ratio)}")
    return {"median_ms": {name: spread(values) for name, values in found.items()}, "ratios": ratios}


def _turned(states: tuple[NodeLoad | None, ...], by: int) -> tuple[NodeLoad | None, ...]:
    """Return the states from another one on in each repetition: load that grows meets none of them always last."""
    first = by % len(states)
    return states[first:] + states[:first]


def _over(these: list[float], those: list[float]) -> dict[str, float]:
    return spread([this / that for this, that in zip(these, those, strict=True)])


def marks(measured: dict[str, dict]) -> dict[str, bool]:  # type: ignore[type-arg]
    found = {}
    if "rates" in measured:
        best, job = measured["rates"]["lease of 16"], measured["rates"]["job"]
        found["speedup"] = best["per_s"]["median"] >= SPEEDUP_MARK * job["per_s"]["median"]
        found["per_s"] = best["per_s"]["median"] >= PER_S_MARK
        found["log_bytes"] = best["log_bytes"]["median"] <= LOG_BYTES_MARK
        found["disk_bytes"] = best["disk_bytes"]["median"] <= DISK_BYTES_MARK
    if "statements" in measured:
        *_, together = measured["statements"].values()
        found["statements"] = together["statements"]["median"] <= STATEMENTS_MARK
    if "depths" in measured:
        found["flat"] = measured["depths"]["flatness"]["median"] <= FLATNESS_MARK
    if "beside" in measured:
        ratios = measured["beside"]["ratios"]
        found["beside"] = (
            max(ratios[f"{name} beside pictures"]["median"] for name in ("claim", "beat")) <= BESIDE_MARK
        )
    return found


def main(arguments: list[str]) -> int:
    options, about = options_of(arguments), machine()
    parts = {"rates": rates, "statements": statements, "depths": depths, "beside": beside}
    with tempfile.TemporaryDirectory(prefix="giornata-pictures-") as name, postgres() as own:
        measured = {part: parts[part](options, own, Path(name)) for part in PARTS if part in options.part}
    reached = marks(measured)
    print(f"marks: {reached}")
    conclude(
        {
            "benchmark": "pictures",
            "machine": about,
            "postgres": own.version,
            "clients": options.clients,
            "depths": options.depths,
            "measured": measured,
            "marks": reached,
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
