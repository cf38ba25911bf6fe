"""Pages of the dashboard when there is much to show: `python -m benchmarks.pages`.

Two real servers on PostgreSQL, one with 100 jobs and 100 nodes, one with 100,000 jobs, 1,000,000 pictures and 1,000
nodes. Every page is asked of both by turns, one request at a time: the ratio of their times to the first byte is what
counts, and the bytes that come before pictures. The pages are those of the routes of the dashboard, with their parts.
A route without an address in `rig/page_addresses.py` ends the run. Then bursts of claims on the large one, by turns
without and with 500 open pages: 100 people have Home, Jobs, a running job, Generate with its gallery, and the fleet
open, and each page follows events and loads its parts again as its HTML says. All share the machine.

Prints tables and which marks are met, then one JSON line. Marks: p95 of the first byte within 1.5 of that with 100
jobs, and at most 150 ms; at most 150 KB with style sheet and scripts; open pages cost claims at most a tenth. How
many statements a page may send and how many rows it reads are asserted by tests, without a clock.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.rig.backlog import BenchmarkQueue
from benchmarks.rig.browser_page import PageTraffic
from benchmarks.rig.bursts import Burst, claim_burst, together
from benchmarks.rig.databases import PostgresOnSocket, postgres
from benchmarks.rig.figures import conclude, machine, percentile, spread, spread_words
from benchmarks.rig.open_pages import PageServer, open_pages, pages_of_people, sign_in, sign_in_people
from benchmarks.rig.page_addresses import FLEET_NAME, PROJECT, RUNNING, addresses
from benchmarks.rig.page_data import QUEUED, fill
from benchmarks.rig.server import BenchmarkServer, server
from giornata.dashboard.app import PAGES
from giornata.dashboard.rendering import STATIC

RATIO_MARK, FIRST_BYTE_MARK_MS, BYTES_MARK, CLAIMS_MARK = 1.5, 150, 150_000, 0.9
LEASE_S = 3600.0
CLAIMING_NODES, TURNS, CLIENTS = 1000, 12, 8
"""A burst is so many turns, in each of which every node claims one job. The jobs end before the next turn."""
PAGES_OF_ONE = 5
FLEETS = {"GIORNATA_FLEETS": json.dumps({FLEET_NAME: {"driver": "static", "kinds": ["train"]}})}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledServer:
    """A server with so many jobs."""

    server: BenchmarkServer
    pages: PageServer
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPage:
    """What was measured of a page: times on the large installation, and their ratios to those on the small one.

    `middle_ratio` is that of the medians; `size_bytes` are those of the page, its style sheets and its scripts.
    """

    ratio: dict[str, float]
    middle_ratio: dict[str, float]
    p95_ms: dict[str, float]
    size_bytes: int


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000, help="of the large installation")
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--pictures", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=40, help="for each page in a repetition")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--open", type=int, default=500, help="pages that are open during the claims")
    parser.add_argument("--only", help="measure only the pages that have this text in their names, and the claims")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; the figures mean little")
    options = parser.parse_args(arguments)
    if options.quick:
        options.jobs, options.nodes, options.pictures, options.open = 1_000, 20, 2_000, 10
        options.requests, options.repetitions = 3, 1
    return options


@contextlib.contextmanager
def filled(own: PostgresOnSocket, home: Path, jobs: int, *, nodes: int, pictures: int) -> Iterator[FilledServer]:
    """Start a server on a database with so many jobs; one of seven is an order, with its share of the pictures."""
    url = own.new_database()
    with server(home / f"pages-{jobs}", url, lease_s=LEASE_S, more=FLEETS) as started:
        fill(url, PROJECT, 1, jobs, pictures=max(1, pictures * 7 // jobs), nodes=nodes)
        pages = sign_in(started.host, started.port, started.admin_key)
        yield FilledServer(server=started, pages=pages, url=url)


def measure_page(path: str, few: FilledServer, many: FilledServer, options: argparse.Namespace) -> MeasuredPage:
    """The first byte of a page of both, by turns; the ratios are those of each repetition."""
    ratios, middle_ratios, p95_ms, page = [], [], [], b""
    for _ in range(options.repetitions + 1):
        times_s: tuple[list[float], list[float]] = ([], [])
        for _ in range(options.requests):
            for one, of_one in zip((few, many), times_s, strict=True):
                seconds, page = one.pages.first_byte(path)
                of_one.append(seconds)
        p95_s = [percentile(each, 0.95) for each in times_s]
        ratios.append(p95_s[1] / p95_s[0])
        middle_ratios.append(statistics.median(times_s[1]) / statistics.median(times_s[0]))
        p95_ms.append(p95_s[1] * 1000)
    # The first repetition warms caches.
    return MeasuredPage(
        ratio=spread(ratios[1:]),
        middle_ratio=spread(middle_ratios[1:]),
        p95_ms=spread(p95_ms[1:], 1),
        size_bytes=len(page) + static_bytes(page.decode()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredClaims:
    """Claims beside open pages, over claims without them: rates, and CPU seconds of the server for the same claims.

    `asked_per_s` are requests of the pages, streams left out; `unchanged` is the share that was answered by 304.
    `pages_cpu` are CPU seconds of the server in a second that the pages cost: what the claims beside them took more.
    Unlike the ratios it hardly depends on what else the machine does.
    """

    ratio: dict[str, float]
    server_cpu_ratio: dict[str, float]
    pages_cpu: dict[str, float]
    asked_per_s: dict[str, float]
    unchanged: dict[str, float]
    rates_per_s: list[list[float]]


def measure_claims(many: FilledServer, options: argparse.Namespace) -> MeasuredClaims:
    """Bursts of claims by turns without open pages and beside them. The first repetition warms caches."""
    queue, of_people = BenchmarkQueue(many.url), -(-options.open // PAGES_OF_ONE)
    people = sign_in_people(many.server.host, many.server.port, many.server.admin_key, PROJECT, of_people)
    pages = pages_of_people(people, PROJECT, RUNNING, options.open)
    found: list[tuple[Burst, Burst, PageTraffic]] = []
    open_s: list[float] = []
    for _ in range(options.repetitions + 1):
        alone = _burst(many, queue)
        with open_pages(pages) as traffic:
            begun_s = time.monotonic()
            beside = _burst(many, queue)
            open_s.append(time.monotonic() - begun_s)
        found.append((alone, beside, traffic))
    kept = found[1:]
    return MeasuredClaims(
        ratio=spread([beside.rate_per_s / alone.rate_per_s for alone, beside, _ in kept]),
        server_cpu_ratio=spread([beside.server_cpu_s / alone.server_cpu_s for alone, beside, _ in kept]),
        pages_cpu=spread(
            [(beside.server_cpu_s - alone.server_cpu_s) / beside.wall_s for alone, beside, _ in kept], 3
        ),
        asked_per_s=spread(
            [traffic.requests / seconds for (*_, traffic), seconds in zip(kept, open_s[1:], strict=True)], 1
        ),
        unchanged=spread([traffic.unchanged / max(1, traffic.requests) for _, _, traffic in kept]),
        rates_per_s=[[round(each.rate_per_s, 1) for each in (alone, beside)] for alone, beside, _ in found],
    )


def _burst(many: FilledServer, queue: BenchmarkQueue) -> Burst:
    turns = []
    for _ in range(TURNS):
        queue.fill_to(CLAIMING_NODES + QUEUED)
        turns.append(claim_burst(many.server, CLAIMING_NODES, CLIENTS, nodes=CLAIMING_NODES)[0])
        queue.end_running(time.time_ns() // 1_000_000)
    return together(turns)


def static_bytes(page: str) -> int:
    """The bytes of the style sheets and scripts that a page names."""
    files = {part.partition("?")[0] for part in page.split("/dashboard/static/")[1:]}
    return sum((Path(STATIC) / file).stat().st_size for file in files)


def main(arguments: list[str]) -> int:
    options, about = options_of(arguments), machine()
    paths = {name: path for name, path in addresses(PAGES).items() if (options.only or "") in name}
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="giornata-pages-")))
        own = stack.enter_context(postgres())
        few = stack.enter_context(filled(own, home, 100, nodes=100, pictures=1_000))
        many = stack.enter_context(filled(own, home, options.jobs, nodes=options.nodes, pictures=options.pictures))
        pages = {}
        for name, path in paths.items():
            pages[name] = measure_page(path, few, many, options)
            row = (pages[name].p95_ms, pages[name].ratio, pages[name].middle_ratio)
            print("{:30} p95 {} ms, ratio {}, of medians {}".format(name, *map(spread_words, row)), flush=True)
        claims = measure_claims(many, options)
    print(
        f"claims beside {options.open} open pages, which ask {spread_words(claims.asked_per_s)} times a second: "
        f"{spread_words(claims.ratio)} of those without, with {spread_words(claims.server_cpu_ratio)} times the CPU "
        f"seconds of the server; the pages cost {spread_words(claims.pages_cpu)} of a core"
    )
    marks = {
        "first byte against 100 jobs": max(each.ratio["median"] for each in pages.values()) <= RATIO_MARK,
        "first byte": max(each.p95_ms["median"] for each in pages.values()) <= FIRST_BYTE_MARK_MS,
        "bytes": max(each.size_bytes for each in pages.values()) <= BYTES_MARK,
        "claims": claims.ratio["median"] >= CLAIMS_MARK,
    }
    for name, met in marks.items():
        print(f"mark of {name}: {'met' if met else 'missed'}")
    conclude(
        {
            "benchmark": "pages",
            "machine": about,
            "postgres": own.version,
            "quick": options.quick,
            "jobs": options.jobs,
            "pages": {name: asdict(each) for name, each in pages.items()},
            "claims": {"open": options.open, **asdict(claims)},
            "marks": marks,
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
