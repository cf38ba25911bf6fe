"""Pages of the dashboard when there is much to show: `python -m benchmarks.pages`.

Two real servers on PostgreSQL, one with 100 jobs and 100 nodes, one with 100,000 jobs, 1,000,000 pictures and 1,000
nodes. Every page is asked of both by turns, one request at a time: the ratio of their times to the first byte is what
counts, and the bytes that come before pictures. Then bursts of claims on the large one, by turns without and with 500
open pages of running jobs, whose browsers follow events and load parts again as the pages do. All share the machine.

Prints tables and which marks are met, then one JSON line. Marks: p95 of the first byte within 1.5 of that with 100
jobs, and at most 150 ms; at most 150 KB with style sheet and scripts; open pages cost claims at most a tenth. How
many statements a page may send and how many rows it reads are asserted by tests, without a clock.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.rig.backlog import Queue
from benchmarks.rig.bursts import claim_burst
from benchmarks.rig.databases import Postgres, postgres
from benchmarks.rig.figures import conclude, machine, percentile, spread, spread_words
from benchmarks.rig.open_pages import PageServer, open_pages, sign_in
from benchmarks.rig.page_data import QUEUED, fill
from benchmarks.rig.server import Server, server
from giornata.dashboard.rendering import STATIC

PROJECT = "default"
RATIO_MARK, FIRST_BYTE_MARK_MS, BYTES_MARK, CLAIMS_MARK = 1.5, 150, 150_000, 0.9
LEASE_S = 3600.0
CLAIMS, CLIENTS = 3000, 8
# An order has a number that seven divides; the others were trainings, of which those up to 2 * QUEUED run.
DONE_JOB, ORDER = "job_many97", "job_many98"
RUNNING = [f"job_many{number}" for number in range(QUEUED + 1, 2 * QUEUED + 1) if number % 7]
_HERE = f"/dashboard/projects/{PROJECT}"
PAGES = {
    "home": _HERE,
    "home, what ended": f"{_HERE}/ended",
    "home, installation": f"{_HERE}/installation",
    "home, last day": f"{_HERE}/installation/day",
    "jobs": f"{_HERE}/jobs",
    "job": f"{_HERE}/jobs/{DONE_JOB}",
    "job, pictures": f"{_HERE}/jobs/{DONE_JOB}/pictures",
    "job, files": f"{_HERE}/jobs/{DONE_JOB}/files",
    "running job": f"{_HERE}/jobs/{RUNNING[0]}",
    "waiting job": f"{_HERE}/jobs/job_many{QUEUED}",
    "order": f"{_HERE}/orders/{ORDER}",
    "new training": f"{_HERE}/train",
    "generate": f"{_HERE}/generate",
    "gallery": f"{_HERE}/gallery",
    "compare": f"{_HERE}/compare",
    "compare, sweeps": f"{_HERE}/compare?kind=sweep",
    "fleet": f"{_HERE}/fleet",
    "machines": f"{_HERE}/fleet/machines",
    "project": f"{_HERE}/settings",
    "money": f"{_HERE}/settings/money",
    "keys": f"{_HERE}/settings/keys",
    "quotas": f"{_HERE}/settings/quotas",
    "retention": f"{_HERE}/settings/retention",
    "audit log": f"{_HERE}/settings/audit-log",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledServer:
    """A server with so many jobs."""

    server: Server
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
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; the figures mean little")
    options = parser.parse_args(arguments)
    if options.quick:
        options.jobs, options.nodes, options.pictures, options.open = 1_000, 20, 2_000, 10
        options.requests, options.repetitions = 3, 1
    return options


@contextlib.contextmanager
def filled(own: Postgres, home: Path, jobs: int, *, nodes: int, pictures: int) -> Iterator[FilledServer]:
    """Start a server on a database with so many jobs; one of seven is an order, with its share of the pictures."""
    url = own.new_database()
    with server(home / f"pages-{jobs}", url, lease_s=LEASE_S) as started:
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


def measure_claims(many: FilledServer, options: argparse.Namespace) -> tuple[dict[str, float], list[list[float]]]:
    """The ratio of the rates of claims beside open pages to those without, by turns; and the rates."""
    queue = Queue(many.url)
    rates: list[list[float]] = []
    for _ in range(options.repetitions + 1):
        alone = _claims_per_s(many, queue)
        with open_pages(many.pages, PROJECT, RUNNING, options.open):
            rates.append([round(alone, 1), round(_claims_per_s(many, queue), 1)])
    return spread([beside / alone for alone, beside in rates[1:]]), rates


def _claims_per_s(many: FilledServer, queue: Queue) -> float:
    queue.fill_to(CLAIMS * 2 + QUEUED)
    burst, _ = claim_burst(many.server, CLAIMS, CLIENTS)
    return burst.rate_per_s


def static_bytes(page: str) -> int:
    """The bytes of the style sheets and scripts that a page names."""
    files = {part.partition("?")[0] for part in page.split("/dashboard/static/")[1:]}
    return sum((Path(STATIC) / file).stat().st_size for file in files)


def main(arguments: list[str]) -> int:
    options, about = options_of(arguments), machine()
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="giornata-pages-")))
        own = stack.enter_context(postgres())
        few = stack.enter_context(filled(own, home, 100, nodes=100, pictures=1_000))
        many = stack.enter_context(filled(own, home, options.jobs, nodes=options.nodes, pictures=options.pictures))
        pages = {}
        for name, path in PAGES.items():
            pages[name] = measure_page(path, few, many, options)
            row = (pages[name].p95_ms, pages[name].ratio, pages[name].middle_ratio)
            print("{:20} p95 {} ms, ratio {}, of medians {}".format(name, *map(spread_words, row)), flush=True)
        ratio, rates = measure_claims(many, options)
    print(f"claims beside {options.open} open pages: {spread_words(ratio)} of those without")
    marks = {
        "first byte against 100 jobs": max(each.ratio["median"] for each in pages.values()) <= RATIO_MARK,
        "first byte": max(each.p95_ms["median"] for each in pages.values()) <= FIRST_BYTE_MARK_MS,
        "bytes": max(each.size_bytes for each in pages.values()) <= BYTES_MARK,
        "claims": ratio["median"] >= CLAIMS_MARK,
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
            "claims": {"open": options.open, "ratio": ratio, "per_s": rates},
            "marks": marks,
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
