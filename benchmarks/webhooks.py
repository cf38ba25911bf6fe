"""Webhooks whose receivers hang, beside others and beside claims: `python -m benchmarks.webhooks`.

A real `giornata server` on a PostgreSQL, and 100 projects with a webhook each, all on this machine. A burst of claims
makes an event for each claimed job, and so a delivery. A round has three bursts, in an order that turns: without
webhooks, with all receivers answering, and with half of the receivers hanging. A delivery's latency runs from the
event to the arrival at a receiver that answers in every burst. Client, server, database and receivers share the
machine, so what matters are the ratios of one run.

Prints a table, then one JSON line. Marks: with hanging receivers, p95 of the others' deliveries within 1.5 times that
without, and p95 of claims within 1.1 times.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from benchmarks.rig.backlog import BenchmarkQueue
from benchmarks.rig.bursts import claim_burst
from benchmarks.rig.databases import engine_of, postgres
from benchmarks.rig.figures import conclude, machine, percentile
from benchmarks.rig.receivers import Receivers, receiving
from benchmarks.rig.server import BenchmarkServer, server
from benchmarks.rig.wire import Wire

DELIVERIES_MARK = 1.5
CLAIMS_MARK = 1.1
PATIENCE_S = 60.0
LEASE_S = 3600.0
WITHOUT, ANSWERING, HANGING = "without webhooks", "all answer", "half hang"
KINDS = (WITHOUT, ANSWERING, HANGING)


@dataclass(slots=True, kw_only=True)
class WebhookInstallation:
    """The server under test, its database, and the receivers of its webhooks."""

    server: BenchmarkServer
    url: str
    queue: BenchmarkQueue
    receivers: Receivers
    loop: asyncio.AbstractEventLoop
    webhooks: int
    claims_s: dict[str, list[list[float]]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    deliveries_s: dict[str, list[list[float]]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def run(self, statement: str, **values: object) -> None:
        engine = engine_of(self.url)
        with engine.begin() as connection:
            connection.execute(sa.text(statement), values)

    def burst(self, kind: str, *, claims: int, clients: int, keep: bool) -> None:
        """Claim jobs of all projects, and wait for the deliveries to the receivers that answer."""
        self.queue.fill_to(claims)
        self.run(
            "UPDATE jobs SET project_id = 'p' || (turn_of.n % :most) FROM (SELECT id, row_number() OVER () AS n "
            "FROM jobs WHERE state = 'queued') turn_of WHERE jobs.id = turn_of.id",
            most=self.webhooks,
        )
        self.run(
            "UPDATE webhooks SET enabled = :enabled, begins_after = (SELECT coalesce(max(id), 0) FROM events)",
            enabled=kind != WITHOUT,
        )
        half = frozenset(f"/{number}" for number in range(self.webhooks // 2))
        self.receivers.hanging = half if kind == HANGING else frozenset()
        self.receivers.latencies_s.clear()
        claimed, _ = claim_burst(self.server, claims, clients)
        others = [f"/{number}" for number in range(self.webhooks // 2, self.webhooks)]
        due = 0 if kind == WITHOUT else claims * len(others) // self.webhooks
        arrived = self._arrived(others, due)
        if keep:
            self.claims_s[kind].append(claimed.latencies_s)
            self.deliveries_s[kind].append(arrived)
        self.receivers.hanging = frozenset()
        self.receivers.let_go(self.loop)
        self.run("UPDATE webhooks SET enabled = false")
        self.run("DELETE FROM webhook_deliveries")

    def _arrived(self, names: list[str], count: int) -> list[float]:
        ends_s = time.monotonic() + PATIENCE_S
        while True:
            found = [each for name in names for each in self.receivers.latencies_s.get(name, [])]
            if len(found) >= count:
                return found
            if time.monotonic() > ends_s:
                sys.exit(f"only {len(found)} of {count} deliveries came within {PATIENCE_S:g} s")
            time.sleep(0.05)


def make_webhooks(started: BenchmarkServer, count: int, port: int) -> None:
    """A project with a key and a webhook for each receiver."""
    with Wire(started.host, started.port) as wire:

        def post(path: str, body: dict[str, object], token: str) -> dict[str, object]:
            status, reply = wire.call("POST", path, json.dumps(body).encode(), token=token)
            if status != 201:
                sys.exit(f"POST {path}: {status} {reply!r}")
            found: dict[str, object] = json.loads(reply)
            return found

        for number in range(count):
            post("/v1/projects", {"id": f"p{number}"}, started.admin_key)
            key = post("/v1/keys", {"scope": "admin", "project_id": f"p{number}"}, started.admin_key)
            target = f"http://127.0.0.1:{port}/{number}"
            post("/v1/webhooks", {"target": target, "events": ["attempt.started"]}, str(key["secret"]))


def options_of(arguments: list[str]) -> argparse.Namespace:
    """Return the options; `--quick` makes the run short and its figures meaningless."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--webhooks", type=int, default=100)
    parser.add_argument("--claims", type=int, default=1_000, help="claims of a burst")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; the figures mean little")
    options = parser.parse_args(arguments)
    if options.quick:
        options.webhooks, options.claims, options.rounds = 10, 100, 1
    return options


def measure(installation: WebhookInstallation, options: argparse.Namespace) -> None:
    """Play the rounds, after one that does not count."""
    for number in range(options.rounds + 1):
        turned = KINDS[number % len(KINDS) :] + KINDS[: number % len(KINDS)]
        for kind in turned:
            installation.burst(kind, claims=options.claims, clients=options.clients, keep=number > 0)


def ratio(above: list[list[float]], below: list[list[float]]) -> float:
    """Return the median, over the rounds, of the ratio of the p95."""
    pairs = zip(above, below, strict=True)
    return round(statistics.median(percentile(one, 0.95) / percentile(other, 0.95) for one, other in pairs), 3)


def main(arguments: list[str]) -> int:
    """Run the benchmark; 1 when a mark was missed."""
    options, about = options_of(arguments), machine()
    with postgres() as own, receiving() as (receivers, loop), tempfile.TemporaryDirectory() as home:
        url = own.new_database()
        networks = {"GIORNATA_WEBHOOK_NETWORKS": '["127.0.0.0/8"]'}
        with server(Path(home), url, lease_s=LEASE_S, more=networks) as started:
            make_webhooks(started, options.webhooks, receivers.port)
            installation = WebhookInstallation(
                server=started,
                url=url,
                queue=BenchmarkQueue(url),
                receivers=receivers,
                loop=loop,
                webhooks=options.webhooks,
            )
            measure(installation, options)
    claims, deliveries = installation.claims_s, installation.deliveries_s
    ratios = {
        "deliveries, half hang to all answer": ratio(deliveries[HANGING], deliveries[ANSWERING]),
        "claims, half hang to all answer": ratio(claims[HANGING], claims[ANSWERING]),
        "claims, all answer to without webhooks": ratio(claims[ANSWERING], claims[WITHOUT]),
    }
    for name, value in ratios.items():
        print(f"{name:<42} {value:g}")
    good = ratios["deliveries, half hang to all answer"] <= DELIVERIES_MARK
    good = good and ratios["claims, half hang to all answer"] <= CLAIMS_MARK
    conclude(
        {
            "benchmark": "webhooks",
            "quick": options.quick,
            "machine": about,
            "webhooks": options.webhooks,
            "claims_a_burst": options.claims,
            "rounds": options.rounds,
            "p95_ratios": ratios,
            "within_marks": good,
        }
    )
    return 0 if good or options.quick else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
