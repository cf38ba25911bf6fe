"""Measure how long requests and claims take, in Prometheus' histograms."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from giornata.control.attempts.claiming.claim import Asked
from giornata.control.memory.durations import Durations
from giornata.domain.errors import Conflict, Forbidden
from giornata.domain.telemetry import Histogram
from giornata.protocol.node.work import ClaimReply
from giornata.protocol.specs import OWN_KIND_PREFIX

REQUEST_BOUNDS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CLAIM_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
LEASED, CONFLICT, FAILED = "lease", "conflict", "error"

ClaimVerb = Callable[[Sequence[Asked]], list[ClaimReply | Conflict | Forbidden]]


class RequestTimes(Collector):
    """Times of requests by route, method and status. The event loop alone observes: there is no lock to take."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, str, int], Histogram] = {}

    def observe(self, route: str, method: str, status: int, took_s: float) -> None:
        """Note one more request. `status` 0 is a client that went away before the reply began."""
        asked = (route, method, status)
        times = self._times.get(asked) or self._times.setdefault(asked, Histogram(REQUEST_BOUNDS_S))
        times.observe(took_s)

    def collect(self) -> Iterator[Metric]:
        """Yield the count by status, and the durations by its class."""
        labels = ["route", "method", "status"]
        requests = CounterMetricFamily("giornata_http_requests", "Requests served.", labels=labels)
        classes: dict[tuple[str, ...], Histogram] = {}
        for (route, method, status), times in sorted(self._times.items()):
            requests.add_metric([route, method, str(status)], sum(times.counts))
            key = (route, method, f"{status // 100}xx" if status else "0")
            classes.setdefault(key, Histogram(REQUEST_BOUNDS_S)).add(times)
        yield requests
        help_text = "Time to serve a request, from its head to the end of the reply; streams as long as they last."
        yield _family("giornata_http_request_duration_seconds", help_text, labels, classes)


class ClaimTimes(Collector):
    """Times of claims by what came of them. The one thread that claims observes."""

    def __init__(self) -> None:
        self._times: dict[str, Histogram] = {}

    def around(self, verb: ClaimVerb) -> ClaimVerb:
        """Return the verb, with its time noted for each claim that it answers."""

        def timed(asked: Sequence[Asked]) -> list[ClaimReply | Conflict | Forbidden]:
            began_s = time.perf_counter()
            try:
                replies = verb(asked)
            except Exception:
                self._observe(FAILED, time.perf_counter() - began_s)
                raise
            took_s = time.perf_counter() - began_s
            for reply in replies:
                self._observe(_outcome(reply), took_s)
            return replies

        return timed

    def _observe(self, outcome: str, took_s: float) -> None:
        times = self._times.get(outcome) or self._times.setdefault(outcome, Histogram(CLAIM_BOUNDS_S))
        times.observe(took_s)

    def collect(self) -> Iterator[Metric]:
        """Yield the durations of claims by outcome."""
        found: dict[tuple[str, ...], Histogram] = {
            (outcome,): times for outcome, times in sorted(self._times.items())
        }
        help_text = "Time in the database of a claim, which claims that came together share; not the wait for a job."
        yield _family("giornata_claim_duration_seconds", help_text, ["outcome"], found)


class JobTimes(Collector):
    """Times that jobs waited and took, as this server saw them."""

    def __init__(self, durations: Durations) -> None:
        self._durations = durations

    def collect(self) -> Iterator[Metric]:
        """Yield the times by kind; kinds of one's own count together, since labels need a bound."""
        waits: dict[tuple[str, ...], Histogram] = {}
        for kind, times in self._durations.waits().items():
            waits.setdefault((kind_label(kind),), Histogram(times.bounds)).add(times)
        help_text = "From the submission of a job to its first attempt."
        yield _family("giornata_job_queue_wait_seconds", help_text, ["kind"], waits)
        lengths: dict[tuple[str, ...], Histogram] = {}
        for (kind, state), times in self._durations.lengths().items():
            lengths.setdefault((kind_label(kind), state), Histogram(times.bounds)).add(times)
        help_text = "From the first attempt of a job to its end, by the state in which it ended."
        yield _family("giornata_job_duration_seconds", help_text, ["kind", "state"], lengths)


def kind_label(kind: str) -> str:
    """Return the label of a kind. Anybody may invent kinds of their own; a label for each would have no bound."""
    return f"{OWN_KIND_PREFIX}*" if kind.startswith(OWN_KIND_PREFIX) else kind


def _outcome(reply: ClaimReply | Conflict | Forbidden) -> str:
    if isinstance(reply, Conflict | Forbidden):
        return CONFLICT
    return LEASED if reply.lease is not None or reply.picture_lease is not None else str(reply.reason)


def _family(
    name: str, help_text: str, labels: Sequence[str], found: Mapping[tuple[str, ...], Histogram]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, help_text, labels=labels)
    for key, times in found.items():
        below, buckets = 0, []
        for bound, count in zip((*times.bounds, inf), times.counts, strict=True):
            below += count
            buckets.append(("+Inf" if bound == inf else str(float(bound)), below))
        family.add_metric(key, buckets, times.total)
    return family
