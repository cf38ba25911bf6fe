"""Forecast when a new job would start, from the pace of the fleet and the jobs ahead."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from giornata.control.budgets.history import PaceHistory, of_records
from giornata.control.context import Foundations
from giornata.control.policy import Policy
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.money_store import NodePlaces, QueueAhead, RunningJob
from giornata.control.ports.user_queries.records import JobRecord
from giornata.domain.jobs.estimates import Forecast, forecast
from giornata.protocol.generation.awaited_annotations import node_kind

Paces = Mapping[str, PaceHistory]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A forecast, None where nothing is known, and what it rests on in words."""

    forecast: Forecast | None
    words: str


def expect(
    tx: Transaction, ctx: Foundations, policy: Policy, job: JobRecord, *, turn: int, run_s: float | None
) -> Expectation:
    """Forecast when the job would start if it were queued now; see `domain.forecast` for the model.

    A place whose running job has an unknown pace is not counted on. With a job ahead whose pace is unknown there is
    no forecast.
    """
    now_ms = ctx.clock.now_ms()
    paces = _paces(tx, job.project_id)
    ahead = tx.forecasts.ahead(kind=job.kind, interrupted=False, priority=job.priority, turn=turn, job_id=job.id)
    kind = node_kind(job.kind, job.spec)
    places = tx.forecasts.places(
        kind=kind,
        project_id=job.project_id,
        min_vram_bytes=job.min_vram_bytes,
        seen_since_ms=now_ms - round(policy.node_gone_after_s * 1000),
    )
    if not places:
        return Expectation(forecast=None, words=f"no node for jobs of kind {kind} is connected")
    unknown = sum(each.jobs for each in ahead if each.steps is None or each.shape_key not in paces)
    if unknown:
        return Expectation(forecast=None, words=f"nobody knows how long {unknown} of the jobs ahead of it take")
    free = [each for place in places for each in _free(place, paces, now_ms=now_ms)]
    if not free:
        return Expectation(forecast=None, words="nobody knows how long the jobs take that run now")
    found = forecast(free_in_s=free, ahead_s=_durations(ahead, paces), run_s=run_s)
    return Expectation(forecast=found, words=_words(places, free, ahead))


def _words(places: Sequence[NodePlaces], free: Sequence[float], ahead: Sequence[QueueAhead]) -> str:
    running = sum(len(place.at_work) for place in places)
    waiting = sum(each.jobs for each in ahead)
    return (
        f"places: {len(free)}, nodes: {len(places)}, jobs that run there: {running}, jobs that go first: {waiting}; "
        "at the pace of recent jobs like them, if no node comes or goes"
    )


def _paces(tx: Transaction, project_id: str) -> Paces:
    found = {shape: of_records(records) for shape, records in tx.forecasts.recent(project_id=project_id).items()}
    return {shape: known for shape, known in found.items() if known is not None}


def _durations(ahead: Iterable[QueueAhead], paces: Paces) -> Iterator[float]:
    """Yield the seconds of each job ahead: those of one shape have equal parts of the steps that are left."""
    for each in ahead:
        takes_s = paces[each.shape_key].start_s + paces[each.shape_key].step_s * (each.steps or 0) / each.jobs
        yield from (takes_s for _ in range(each.jobs))


def _free(place: NodePlaces, paces: Paces, *, now_ms: int) -> Iterator[float]:
    yield from (0.0 for _ in range(place.places - len(place.at_work)))
    for work in place.at_work:
        left_s = _left_s(work, paces.get(work.shape_key), now_ms=now_ms)
        if left_s is not None:
            yield left_s


def _left_s(work: RunningJob, known: PaceHistory | None, *, now_ms: int) -> float | None:
    """Return the seconds that a running job still takes: by its own pace, or by that of others like it; None if not
    known.
    """
    if work.total_steps is None:
        return None
    left, made = work.total_steps - work.last_step, work.last_step - work.start_step
    if work.first_step_at_ms is not None and made > 1:
        return max(0.0, left * (now_ms - work.first_step_at_ms) / 1000 / (made - 1))
    if known is None:
        return None
    return (known.start_s if made == 0 else 0.0) + left * known.step_s
