"""This version and another one by turns, in one run: `python -m benchmarks.claim --against COMMIT`."""

import argparse
import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from benchmarks.rig.backlog import BenchmarkQueue
from benchmarks.rig.bursts import Burst, claim_burst
from benchmarks.rig.databases import PostgresOnSocket, postgres
from benchmarks.rig.figures import conclude, spread, spread_words
from benchmarks.rig.job_lifecycles import over_http
from benchmarks.rig.server import BenchmarkServer, server

T = TypeVar("T")
LEASE_S = 3600.0
ROOT = Path(__file__).parents[2]
OURS, THEIRS = "this version", "that one"


def against(options: argparse.Namespace, about: Mapping[str, object]) -> int:
    """Plays both and prints this version's rates over the other's; 1 where a median is below 1."""
    with checked_out(options.against) as source, postgres() as own:
        rows: list[dict[str, object]] = []
        for database in options.databases:
            for depth in options.depths:
                rows += _claims(options, own, source, database, depth)
            if options.lives:
                rows += [_lives(options, own, source, database, clients) for clients in options.clients]
    slower = [row["name"] for row in rows if row["ratio"]["median"] < 1]  # type: ignore[index]
    print("slower than that version: " + (", ".join(map(str, slower)) or "nothing"))
    conclude({"benchmark": "claim", "against": options.against, "machine": about, "rows": rows, "slower": slower})
    return 1 if slower else 0


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The folder of that commit's package, in a worktree that goes again."""
    with tempfile.TemporaryDirectory(prefix="giornata-against-") as name:
        tree = Path(name) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree / "src"
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *arguments], check=True)


def _claims(
    options: argparse.Namespace, own: PostgresOnSocket, source: Path, database: str, depth: int
) -> list[dict[str, object]]:
    """Two servers stand side by side, each on a queue of its own; one is asked at a time."""
    with _both(own, source, database) as pair:

        def burst(name: str, clients: int) -> Burst:
            started, queue = pair[name]
            queue.fill_to(depth)
            return claim_burst(started, options.claims, clients)[0]

        for name in pair:  # warms connections and plans, and is not kept
            burst(name, max(options.clients))
        rows = []
        for clients in options.clients:
            bursts = _by_turns(options.repetitions, lambda name, clients=clients: burst(name, clients))
            rates = {name: [each.rate_per_s for each in found] for name, found in bursts.items()}
            cpu_ms = {
                name: round(
                    sum(each.server_cpu_s for each in found) / sum(len(each.latencies_s) for each in found) * 1000, 2
                )
                for name, found in bursts.items()
            }
            rows.append(_row(f"{database}, {depth} queued, {clients} clients: claims/s", rates) | {"cpu_ms": cpu_ms})
        return rows


def _lives(
    options: argparse.Namespace, own: PostgresOnSocket, source: Path, database: str, clients: int
) -> dict[str, object]:
    """Submit, claim and complete over HTTP, on fresh servers."""

    def live(name: str) -> float:
        with _both(own, source, database, only=name) as pair:
            life = over_http(pair[name][0], options.lives, clients)
            return life["done"] / (life["enqueue_s"] + life["work_s"])

    return _row(f"{database}, {clients} clients: lives/s", _by_turns(min(3, options.repetitions), live))


@contextlib.contextmanager
def _both(
    own: PostgresOnSocket, source: Path, database: str, *, only: str | None = None
) -> Iterator[dict[str, tuple[BenchmarkServer, BenchmarkQueue]]]:
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="giornata-load-")))
        pair = {}
        for name in (OURS, THEIRS) if only is None else (only,):
            data = home / name.replace(" ", "-")
            url = own.new_database() if database == "postgres" else f"sqlite:///{data / 'giornata.db'}"
            of = source if name == THEIRS else None
            started = stack.enter_context(server(data, url, lease_s=LEASE_S, source=of))
            pair[name] = (started, BenchmarkQueue(url))
        yield pair


def _by_turns(repetitions: int, measure: Callable[[str], T]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {OURS: [], THEIRS: []}
    for repetition in range(repetitions):
        for name in (OURS, THEIRS) if repetition % 2 else (THEIRS, OURS):
            found[name].append(measure(name))
    return found


def _row(name: str, rates: Mapping[str, list[float]]) -> dict[str, object]:
    ratio = spread([ours / theirs for ours, theirs in zip(rates[OURS], rates[THEIRS], strict=True)])
    shown = {each: spread(of_it, 0) for each, of_it in rates.items()}
    words = ", ".join(f"{each} {spread_words(of_it)}" for each, of_it in shown.items())
    print(f"{name:45} {spread_words(ratio)}: {words}", flush=True)
    return {"name": name, "ratio": ratio, **shown}
