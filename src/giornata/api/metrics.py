"""Metrics of requests and of the installation: `/metrics` in the text format of Prometheus, and the access log."""

import itertools
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from giornata import __version__
from giornata.api.replies.problems import internal_problem, respond
from giornata.api.timings import ClaimTimes, JobTimes, RequestTimes, kind_label
from giornata.control.loops import LoopStatus
from giornata.control.memory.durations import Durations
from giornata.control.memory.ended_pictures import EndedPictures
from giornata.control.ports.node_queries.gauges import Gauges, OutboxGauges, PictureGauges
from giornata.domain.billing.costs import PARTS
from giornata.domain.billing.money import MICRO_USD
from giornata.domain.generation.picture import OPEN, PictureState
from giornata.domain.jobs.audits import AuditState
from giornata.domain.jobs.job import JobState
from giornata.domain.machines.health import MachineState
from giornata.domain.telemetry import request_id as log_request_id
from giornata.protocol.project.admin import NodeState
from giornata.web.request_limits import SCOPE_KEY

LoopsStatus = Callable[[], Sequence[LoopStatus]]
OF_ATTEMPT, OF_JOB = "/v1/node/attempts/{attempt_id}", "/v1/jobs/{job_id}"
BLOBS = "/v1/blobs/"
KEPT_BY_NOBODY = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
"""Headers of each reply that does not have them, but for those of blobs."""
access = logging.getLogger("giornata.access")
log = logging.getLogger("giornata.api")


class Metrics:
    """The metrics of this server: `requests` and `claims` note what it does; everything else is read when it is
    asked for.

    Jobs, nodes and ended attempts are read from the store, which all servers share: do not add them up over servers.
    """

    def __init__(
        self,
        *,
        read_gauges: Callable[[], Gauges],
        now_ms: Callable[[], int],
        loops_status: LoopsStatus,
        kept_s: float,
        durations: Durations,
        ended_pictures: EndedPictures,
        disks: Mapping[str, Path] | None = None,
    ) -> None:
        self.requests, self.claims = RequestTimes(), ClaimTimes()
        self._registry = CollectorRegistry()
        self._registry.register(self.requests)
        self._registry.register(self.claims)
        self._registry.register(JobTimes(durations))
        self._registry.register(_PictureCollector(ended_pictures))
        self._registry.register(_StoreCollector(read_gauges, now_ms, kept_s))
        self._registry.register(_LoopCollector(loops_status))
        self._registry.register(_ServerCollector(disks or {}))

    def text(self) -> bytes:
        """Return the exposition. Raises Unavailable when the store does not answer."""
        return generate_latest(self._registry)


class _StoreCollector(Collector):
    """Exports the gauges of the store, read at most once in `kept_s` seconds."""

    def __init__(self, read_gauges: Callable[[], Gauges], now_ms: Callable[[], int], kept_s: float) -> None:
        self._read, self._now_ms, self._kept_ms = read_gauges, now_ms, kept_s * 1000
        self._kept: tuple[int, Gauges] | None = None

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that the store is not read at registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families, from one read of the store."""
        now_ms = self._now_ms()
        if self._kept is None or now_ms - self._kept[0] >= self._kept_ms:
            self._kept = (now_ms, self._read())
        gauges = self._kept[1]
        yield _jobs(gauges)
        help_text = "Age of the job that has waited longest; 0: none."
        yield _age("giornata_oldest_queued_seconds", help_text, gauges.oldest_queued_at_ms, now_ms=now_ms)
        nodes = GaugeMetricFamily("giornata_nodes", "Nodes by state.", labels=["state"])
        for state in NodeState:
            nodes.add_metric([state], gauges.nodes.get(state, 0))
        yield nodes
        ended = CounterMetricFamily("giornata_attempts_ended", "Attempts ended, by reason.", labels=["reason"])
        for reason, count in sorted(gauges.ended.by_reason.items()):
            ended.add_metric([reason], count)
        yield ended
        done = CounterMetricFamily("giornata_steps_done", "Steps that ended attempts did.")
        done.add_metric([], gauges.ended.steps_done)
        lost = CounterMetricFamily("giornata_steps_lost", "Steps of ended attempts that no checkpoint has.")
        lost.add_metric([], gauges.ended.steps_lost)
        yield from (done, lost)
        yield from _pictures(gauges.pictures, now_ms=now_ms)
        yield from _spend(gauges)
        yield from _machines(gauges)
        yield from _fleets(gauges)
        yield _fleet_time(gauges)
        yield _outbox(gauges.outbox, now_ms=now_ms)
        audits = GaugeMetricFamily("giornata_audits", "Replay audits by state.", labels=["state"])
        for audit_state in AuditState:
            audits.add_metric([audit_state], gauges.audits.get(audit_state, 0))
        yield audits


class _PictureCollector(Collector):
    """Exports the pictures that ended, as far as this server told of them."""

    def __init__(self, ended: EndedPictures) -> None:
        self._ended = ended

    def collect(self) -> Iterator[Metric]:
        """Yield the count of ended pictures by state."""
        help_text = "Pictures that ended since this server started; add up over servers."
        family = CounterMetricFamily("giornata_pictures_ended", help_text, labels=["state"])
        counts = self._ended.counts()
        for state in (PictureState.SUCCEEDED, PictureState.FAILED):
            family.add_metric([state], counts.get(state, 0))
        yield family


class _LoopCollector(Collector):
    """Exports the state of the server's loops."""

    def __init__(self, loops_status: LoopsStatus) -> None:
        self._loops_status = loops_status

    def collect(self) -> Iterator[Metric]:
        """Yield runs, errors, and the age of the last success, by loop."""
        runs = CounterMetricFamily("giornata_loop_runs", "Turns of each loop.", labels=["loop"])
        errors = CounterMetricFamily("giornata_loop_errors", "Turns that failed.", labels=["loop"])
        age = GaugeMetricFamily("giornata_loop_success_age_seconds", "Since the last good turn.", labels=["loop"])
        late = GaugeMetricFamily("giornata_loop_late", "1: its last good turn is too long ago.", labels=["loop"])
        for status in self._loops_status():
            runs.add_metric([status.name], status.runs)
            errors.add_metric([status.name], status.errors)
            age.add_metric([status.name], status.last_success_age_s)
            late.add_metric([status.name], float(status.late))
        yield from (runs, errors, age, late)


class _ServerCollector(Collector):
    """Exports the version of this server, and the room on the disks of its folders."""

    def __init__(self, disks: Mapping[str, Path]) -> None:
        self._disks = disks

    def collect(self) -> Iterator[Metric]:
        """Yield the version, and free and whole bytes of each folder's disk. A folder that is away has none."""
        build = GaugeMetricFamily("giornata_build_info", "1, for the version of this server.", labels=["version"])
        build.add_metric([__version__], 1)
        free = GaugeMetricFamily("giornata_disk_free_bytes", "Room left on the disk of a folder.", labels=["folder"])
        whole = GaugeMetricFamily("giornata_disk_size_bytes", "Size of the disk of a folder.", labels=["folder"])
        for name, folder in self._disks.items():
            try:
                found = os.statvfs(folder)
            except OSError:
                continue
            free.add_metric([name], found.f_bavail * found.f_frsize)
            whole.add_metric([name], found.f_blocks * found.f_frsize)
        yield from (build, free, whole)


def _age(name: str, help_text: str, since_ms: int | None, *, now_ms: int) -> Metric:
    family = GaugeMetricFamily(name, help_text)
    family.add_metric([], 0.0 if since_ms is None else max(0, now_ms - since_ms) / 1000)
    return family


def _pictures(gauges: PictureGauges, *, now_ms: int) -> Iterator[Metric]:
    pictures = GaugeMetricFamily("giornata_pictures", "Pictures that have not ended, by state.", labels=["state"])
    for state in OPEN:
        pictures.add_metric([state], getattr(gauges, state))
    yield pictures
    help_text = "Age of the oldest order with a queued picture; 0: none."
    yield _age("giornata_oldest_queued_picture_seconds", help_text, gauges.oldest_queued_at_ms, now_ms=now_ms)
    leases = GaugeMetricFamily("giornata_picture_leases", "Leases of pictures that nodes hold.")
    leases.add_metric([], gauges.leases)
    yield leases


def _outbox(outbox: OutboxGauges, *, now_ms: int) -> Metric:
    help_text = "How long the oldest event waits to be turned into deliveries, and the oldest delivery to be sent."
    family = GaugeMetricFamily("giornata_outbox_lag_seconds", help_text, labels=["stage"])
    stages = {"events": outbox.oldest_event_at_ms, "deliveries": outbox.oldest_due_at_ms}
    for stage, since_ms in stages.items():
        family.add_metric([stage], 0.0 if since_ms is None else max(0, now_ms - since_ms) / 1000)
    return family


def _spend(gauges: Gauges) -> Iterator[Metric]:
    spend = CounterMetricFamily("giornata_spend_usd", "What all attempts cost, in US dollars.")
    spend.add_metric([], gauges.spend_micro_usd / MICRO_USD)
    yield spend
    earlier = CounterMetricFamily("giornata_spend_micro_usd", "The same in millionths; use giornata_spend_usd_total.")
    earlier.add_metric([], gauges.spend_micro_usd)
    yield earlier


def _machines(gauges: Gauges) -> Iterator[Metric]:
    machines = GaugeMetricFamily("giornata_machines", "Machines by their worst state.", labels=["state"])
    for state in MachineState:
        machines.add_metric([state], gauges.machines.get(state, 0))
    yield machines
    quarantines = CounterMetricFamily("giornata_quarantines", "Times that a machine was quarantined.")
    quarantines.add_metric([], gauges.quarantines)
    yield quarantines
    replaced = CounterMetricFamily("giornata_reallocations", "Machines replaced, by fleet.", labels=["fleet"])
    for fleet, count in sorted(gauges.reallocations.items()):
        replaced.add_metric([fleet], count)
    yield replaced


def _fleet_time(gauges: Gauges) -> Metric:
    """Export the billed time of the last day by fleet and use."""
    help_text = "Billed time of the last day, by fleet and use."
    family = GaugeMetricFamily("giornata_fleet_time_seconds", help_text, labels=["fleet", "use"])
    for each in gauges.fleet_time:
        for part in PARTS:
            family.add_metric([each.fleet, part], getattr(each, f"{part}_ms") / 1000)
    return family


def _fleets(gauges: Gauges) -> Iterator[Metric]:
    desired = GaugeMetricFamily("giornata_fleet_desired", "Nodes that the provider is asked for.", labels=["fleet"])
    for name, nodes in sorted(gauges.fleet_desired.items()):
        desired.add_metric([name], nodes)
    there = GaugeMetricFamily(
        "giornata_fleet_instances", "Instances that the provider lists.", labels=["fleet", "state"]
    )
    for (name, state), count in sorted(gauges.fleet_instances.items()):
        there.add_metric([name, state], count)
    demand = GaugeMetricFamily("giornata_queue_demand", "Jobs that wait for a node.")
    demand.add_metric([], sum(count for (_, state), count in gauges.jobs.items() if state == JobState.QUEUED))
    yield from (desired, there, demand)


def _jobs(gauges: Gauges) -> Metric:
    family = GaugeMetricFamily("giornata_jobs", "Jobs by kind and state.", labels=["kind", "state"])
    counts: dict[tuple[str, str], int] = {("train", state.value): 0 for state in JobState}
    for (kind, state), count in gauges.jobs.items():
        key = (kind_label(kind), state)
        counts[key] = counts.get(key, 0) + count
    for (kind, state), count in sorted(counts.items()):
        family.add_metric([kind, state], count)
    return family


class MetricsMiddleware:
    """ASGI middleware around everything else that notes and logs each request, and names each reply.

    No cache keeps a reply: it has a project's rows, signed URLs and, once, secrets. Only what a signed URL names is
    the same for everybody.

    The access line is one JSON object. It holds the route rather than the address, with the id of the job or attempt,
    and no query: signatures and names of objects do not belong in a log.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics
        self._origin, self._numbers = secrets.token_hex(8), itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, and note how it went."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, status, began_s = f"{self._origin}{next(self._numbers):016x}", 0, time.perf_counter()
        log_request_id.set(request_id)
        of_a_blob = scope["path"].startswith(BLOBS)

        async def noting_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message.get("headers", ()))
                said = {name for name, _ in headers}
                kept = [] if of_a_blob else [each for each in KEPT_BY_NOBODY if each[0] not in said]
                own = [(b"x-request-id", request_id.encode()), *kept, *scope.get(SCOPE_KEY, ())]
                message["headers"] = [*headers, *own]
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        except Exception:  # the supervisor of requests
            log.exception("request %s failed: %s %s", request_id, scope["method"], scope["path"])
            if status:
                raise  # the reply has begun: all that is left is to cut the connection
            await respond(internal_problem(request_id))(scope, receive, noting_send)
        finally:
            self._note(scope, status, request_id, time.perf_counter() - began_s)

    def _note(self, scope: Scope, status: int, request_id: str, took_s: float) -> None:
        route, method = getattr(scope.get("route"), "path", "unmatched"), scope["method"]
        self._metrics.requests.observe(route, method, status, took_s)
        line = {
            "request_id": request_id,
            "method": method,
            "route": route,
            "status": status,
            "took_ms": round(took_s * 1000, 1),
        }
        if route.startswith(OF_ATTEMPT):
            line["attempt"] = scope["path"].split("/", 5)[4]
        elif route.startswith(OF_JOB):
            line["job"] = scope["path"].split("/", 4)[3]
        access.info(json.dumps(line))
