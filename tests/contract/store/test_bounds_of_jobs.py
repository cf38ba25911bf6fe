"""What one job may leave behind is bounded. What is over a bound is left out; the job's events say so once."""

from dataclasses import replace

from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.attempts.report import LONGEST_LINE, add_log_lines, add_notice, put_metrics
from giornata.control.memory.process_cache import ProcessCache
from giornata.control.policy import Policy
from giornata.protocol.node.work import Heartbeat, LogLines, MetricBatch, NoticeReport, StepMetrics
from giornata.store import schema

NARROW = Policy(
    max_notices_per_job=3,
    max_notice_bytes=100,
    max_metric_names_per_job=4,
    max_metric_name_length=8,
    max_metric_steps_per_job=10,
)


def narrow(rig: StoreRig) -> StoreRig:
    """The same world under small bounds, in a server that has just started."""
    rig.ctx = replace(rig.ctx, policy=NARROW, memory=fresh_memory(rig))
    return rig


def fresh_memory(rig: StoreRig) -> ProcessCache:
    memory = ProcessCache()
    memory.signing_key = rig.ctx.memory.signing_key
    return memory


def said(rig: StoreRig, job_id: str) -> list[str]:
    return [row["data"]["name"] for row in rig.rows(schema.events, job_id=job_id, type="notice")]


def measured(rig: StoreRig, job_id: str) -> dict[int, dict[str, float]]:
    return {row["step"]: row["values"] for row in rig.rows(schema.metrics, job_id=job_id)}


def measure(rig: StoreRig, attempt_id: str, *points: tuple[int, dict[str, float]]) -> None:
    batch = MetricBatch(points=tuple(StepMetrics(step=step, values=values) for step, values in points))
    put_metrics(rig.ctx, attempt_id, batch)


def test_notices_are_so_many_and_the_last_says_so(rig: StoreRig) -> None:
    rig = narrow(rig)
    job_id = rig.add_job()
    lease = rig.lease(1)
    for _ in range(8):
        add_notice(rig.ctx, lease.attempt_id, NoticeReport(name="said"))
    assert said(rig, job_id) == ["said"] * 3 + ["notices-full"]


def test_a_large_notice_keeps_its_name_alone(rig: StoreRig) -> None:
    rig = narrow(rig)
    job_id = rig.add_job()
    lease = rig.lease(1)
    add_notice(rig.ctx, lease.attempt_id, NoticeReport(name="said", data={"text": "x" * 200}))
    (row,) = rig.rows(schema.events, job_id=job_id, type="notice")
    assert row["data"] == {"name": "said", "left_out": "the data has 211 bytes; at most 100 are kept"}


def test_names_of_metrics_are_so_many(rig: StoreRig) -> None:
    rig = narrow(rig)
    job_id = rig.add_job()
    lease = rig.lease(1)
    measure(
        rig, lease.attempt_id, (1, {"a": 1.0, "b": 1.0, "far-too-long": 1.0}), (2, {"c": 1.0, "d": 1.0, "e": 1.0})
    )
    measure(rig, lease.attempt_id, (3, {"a": 2.0, "f": 2.0}))
    assert measured(rig, job_id) == {1: {"a": 1.0, "b": 1.0}, 2: {"c": 1.0, "d": 1.0}, 3: {"a": 2.0}}
    assert said(rig, job_id) == ["metric-names-full"]


def test_names_are_known_to_a_server_that_starts_later(rig: StoreRig) -> None:
    rig = narrow(rig)
    job_id = rig.add_job()
    lease = rig.lease(1)
    measure(rig, lease.attempt_id, (1, {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}))
    later = narrow(rig)
    measure(later, lease.attempt_id, (2, {"a": 2.0, "e": 2.0}))
    assert measured(rig, job_id)[2] == {"a": 2.0}


def test_steps_with_metrics_are_so_many_whatever_their_numbers(rig: StoreRig) -> None:
    rig = narrow(rig)
    job_id = rig.add_job()
    lease = rig.lease(1)
    for first in range(0, 60, 6):
        measure(rig, lease.attempt_id, *((step, {"loss": 0.5}) for step in range(first, first + 6)))
    assert sorted(measured(rig, job_id)) == list(range(20))
    assert said(rig, job_id) == ["metrics-full"]
    assert rig.job(job_id)["step"] == 59, "the job goes on all the same"


def test_heartbeats_are_bounded_alike_without_asking_the_database(rig: StoreRig) -> None:
    rig = narrow(rig)
    job_id = rig.add_job()
    lease = rig.lease(1)
    for step in range(1, 30):
        heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=step, metrics={f"m{step}": 1.0, "loss": 1.0}))
    found = measured(rig, job_id)
    assert max(found) < 10
    assert len({name for values in found.values() for name in values}) <= 4


def test_long_lines_are_cut(rig: StoreRig) -> None:
    job_id = rig.add_job()
    lease = rig.lease(1)
    add_log_lines(rig.ctx, lease.attempt_id, LogLines(first=0, lines=("x" * (LONGEST_LINE + 1), "short")))
    assert [len(row["line"]) for row in rig.rows(schema.logs, job_id=job_id)] == [LONGEST_LINE, 5]
