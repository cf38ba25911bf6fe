"""Every scenario with many seeds: `make sim-night`, or `python -m tests.sim.night --scenarios heat --seeds 5`.

Says a line for each run, and ends with 1 when an invariant broke; the last lines name the scenario, its size, the
seed and the invariant. Runs are smaller than the scenarios' own, so that all of them fit into a night.
"""

import argparse
import itertools
import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator
from typing import Any

from giornata.cli.tools.simulate_words import broken_words
from giornata.simulate.results.report import summary
from giornata.simulate.run import played
from giornata.simulate.scenarios import SCENARIOS, sized

# Jobs and nodes: several jobs for each node, and enough nodes for cohorts.
SIZES = {
    "ancestor-1000": (200, 40),
    "ancestor-1000-our-trainer": (200, 40),
    "black-hole": (60, 12),
    "stragglers": (60, 12),
    "churn": (20, 6),
    "outage": (24, 8),
    "last-job": (1, 1),
    "flood": (200, 20),
    "price-spike": (60, 12),
    "zombies": (60, 12),
    "region-loss": (24, 8),
    "evenings": (60, 12),
    "heat": (32, 12),
    "crash-loop": (60, 12),
}

Task = tuple[str, int]


def play(task: Task) -> dict[str, Any]:
    """The summary of one run, or what stopped it."""
    logging.disable(logging.CRITICAL)
    name, seed = task
    jobs, nodes = SIZES[name]
    try:
        with played(sized(SCENARIOS[name], jobs=jobs, nodes=nodes), seed=seed) as ran:
            return {**summary(ran), "cpu_s": ran.cpu_s}
    except Exception as error:  # noqa: BLE001 - a run that stops must not hide what the others find
        stopped = f"stopped: {type(error).__name__}: {error}"
        told = {"scenario": name, "policy": "giornata", "seed": seed, "jobs": jobs, "nodes": nodes}
        return {**told, "broken": [stopped], "cpu_s": 0.0}


def say(line: str) -> None:
    """At once: a night is watched from time to time."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _played(tasks: list[Task], *, processes: int) -> Iterator[dict[str, Any]]:
    if processes == 1:
        yield from map(play, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=20) as pool:
        yield from pool.imap_unordered(play, tasks)


def main(arguments: list[str]) -> int:
    """Play them all; 1 when anything broke."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--seeds", type=int, default=30, help="how many (default 30)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--processes", type=int, default=2, help="side by side (default 2)")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    # Seed by seed, so that a night that is cut short has seen every scenario.
    tasks = [(name, seed) for seed, name in itertools.product(seeds, options.scenarios)]
    began_s, broken, cpu_s = time.monotonic(), [], 0.0
    for told in _played(tasks, processes=options.processes):
        cpu_s += told["cpu_s"]
        say(f"{told['scenario']} {told['seed']}: {'; '.join(told['broken']) or 'held'}")
        broken += [broken_words(told)] if told["broken"] else []
    spent = f"{(time.monotonic() - began_s) / 60:.1f} min, {cpu_s / 60:.1f} min of computing"
    say(f"{len(tasks)} runs, {len(broken)} broken; {spent}")
    for line in broken:
        say(line)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
