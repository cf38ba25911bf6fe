"""`/metrics`, in Prometheus' text format, from a registry of this app's own."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from giornata.control.loops import LoopStatus
from giornata.control.ports.gauges import Gauges
from giornata.domain.health import MachineState
from giornata.domain.job import JobState
from giornata.protocol.admin import NodeState
from giornata.protocol.specs import OWN_KIND_PREFIX

LoopsStatus = Callable[[], Sequence[LoopStatus]]


class Metrics:
    """Counts requests, and reads everything else when it is asked.

    Jobs, nodes and ended attempts are read from the store, which all servers share: do not add them up over servers.
    """

    def __init__(
        self,
        *,
        read_gauges: Callable[[], Gauges],
        now_ms: Callable[[], int],
        loops_status: LoopsStatus,
        kept_s: float,
    ) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "giornata_http_requests", "Requests served.", ["route", "method", "status"], registry=self._registry
        )
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._registry.register(_StoreCollector(read_gauges, now_ms, kept_s))
        self._registry.register(_LoopCollector(loops_status))

    def count_request(self, *, route: str, method: str, status: int) -> None:
        """One more request. `status` 0 is a client that went away before the reply began."""
        asked = (route, method, status)
        if (counter := self._counters.get(asked)) is None:
            counter = self._counters[asked] = self._requests.labels(route, method, str(status))
        counter.inc()

    def text(self) -> bytes:
        """The exposition. Raises Unavailable when the store does not answer."""
        return generate_latest(self._registry)


class _StoreCollector(Collector):
    """What the store knows, read at most once in `kept_s` seconds."""

    def __init__(self, read_gauges: Callable[[], Gauges], now_ms: Callable[[], int], kept_s: float) -> None:
        self._read, self._now_ms, self._kept_ms = read_gauges, now_ms, kept_s * 1000
        self._kept: tuple[int, Gauges] | None = None

    def describe(self) -> Iterable[Metric]:
        """Nothing is read from the store at registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The families, from one read."""
        now_ms = self._now_ms()
        if self._kept is None or now_ms - self._kept[0] >= self._kept_ms:
            self._kept = (now_ms, self._read())
        gauges = self._kept[1]
        yield _jobs(gauges)
        oldest = GaugeMetricFamily(
            "giornata_oldest_queued_seconds", "Age of the job that has waited longest; 0: none."
        )
        queued_at_ms = gauges.oldest_queued_at_ms
        oldest.add_metric([], 0.0 if queued_at_ms is None else max(0, now_ms - queued_at_ms) / 1000)
        yield oldest
        nodes = GaugeMetricFamily("giornata_nodes", "Nodes by state.", labels=["state"])
        for state in NodeState:
            nodes.add_metric([state], gauges.nodes.get(state, 0))
        yield nodes
        ended = CounterMetricFamily("giornata_attempts_ended", "Attempts ended, by reason.", labels=["reason"])
        for reason, count in sorted(gauges.attempts_ended.items()):
            ended.add_metric([reason], count)
        yield ended
        yield from _machines(gauges)


class _LoopCollector(Collector):
    """How the server's loops fare."""

    def __init__(self, loops_status: LoopsStatus) -> None:
        self._loops_status = loops_status

    def collect(self) -> Iterator[Metric]:
        """Runs, errors, and the age of the last success, by loop."""
        runs = CounterMetricFamily("giornata_loop_runs", "Turns of each loop.", labels=["loop"])
        errors = CounterMetricFamily("giornata_loop_errors", "Turns that failed.", labels=["loop"])
        age = GaugeMetricFamily("giornata_loop_success_age_seconds", "Since the last good turn.", labels=["loop"])
        for status in self._loops_status():
            runs.add_metric([status.name], status.runs)
            errors.add_metric([status.name], status.errors)
            age.add_metric([status.name], status.last_success_age_s)
        yield from (runs, errors, age)


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


def _jobs(gauges: Gauges) -> Metric:
    family = GaugeMetricFamily("giornata_jobs", "Jobs by kind and state.", labels=["kind", "state"])
    counts: dict[tuple[str, str], int] = {("train", state.value): 0 for state in JobState}
    for (kind, state), count in gauges.jobs.items():
        # Anybody may invent kinds of their own; a label per invention would have no bound.
        key = (f"{OWN_KIND_PREFIX}*" if kind.startswith(OWN_KIND_PREFIX) else kind, state)
        counts[key] = counts.get(key, 0) + count
    for (kind, state), count in sorted(counts.items()):
        family.add_metric([kind, state], count)
    return family
