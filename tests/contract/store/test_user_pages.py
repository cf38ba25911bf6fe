"""Lists read no more than a page holds: what is left out is not read, and a page of large rows ends early."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import sqlalchemy as sa
from tests.fixtures.users import ANN, NODE, ROOT, claim, move_in, new_dataset, new_job

from giornata.control.attempts.claiming.claim import claim_once
from giornata.control.attempts.report import add_log_lines, add_notice, put_metrics
from giornata.control.context import Context
from giornata.control.fleets.nodes import list_nodes
from giornata.control.jobs.reading.job_outputs import read_events, read_logs, read_metrics
from giornata.control.jobs.reading.read_jobs import list_jobs
from giornata.control.jobs.submission.submit import submit
from giornata.control.policy import Policy
from giornata.control.ports.store import Transaction
from giornata.control.storage.datasets import list_datasets
from giornata.domain.errors import InvalidInput
from giornata.protocol.jobs import JobPage, JobPart, SubmitJob
from giornata.protocol.node.work import Claim, LogLines, MetricBatch, NodeInfo, NoticeReport, StepMetrics

PAGE_BYTES = 20_000
SPEC_BYTES = 6_000
SLACK_BYTES = 2_000  # of the reply's field names, and of the row with which the page ends


@pytest.fixture
def home(ctx: Context) -> Context:
    ctx = replace(ctx, policy=Policy(max_page_bytes=PAGE_BYTES))
    move_in(ctx)
    return ctx


class _ReadStore:
    """A store that notes which texts its queries brought back."""

    def __init__(self, ctx: Context) -> None:
        self._store = ctx.store
        self.statements: list[str] = []
        self.rows = 0

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        with self._store.read() as tx:
            sa.event.listen(tx.connection, "before_cursor_execute", self._note)
            try:
                yield tx
            finally:
                sa.event.remove(tx.connection, "before_cursor_execute", self._note)

    def _note(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        self.statements.append(statement)


def large_jobs(ctx: Context, count: int) -> None:
    for number in range(count):
        spec = {"steps": number, "data": "x" * SPEC_BYTES}
        submit(ctx, ANN, SubmitJob(kind="x-large", spec=spec), None)


def listed(ctx: Context, **asked: object) -> JobPage:
    usual: dict[str, object] = {"states": (), "labels": {}, "kind": None, "cursor": None, "limit": 500}
    return list_jobs(ctx, ANN, **usual | asked)  # type: ignore[arg-type]


def test_a_list_of_jobs_neither_says_nor_reads_specs_and_results(home: Context) -> None:
    large_jobs(home, 3)
    store = _ReadStore(home)
    page = listed(replace(home, store=store))  # type: ignore[arg-type]
    assert [(job.spec, job.result) for job in page.items] == [({}, {})] * 3
    assert page.next is None
    assert len(store.statements) <= 4
    said = " ".join(store.statements)
    assert "jobs.labels" in said
    assert "jobs.spec" not in said
    assert "jobs.result" not in said


@pytest.mark.parametrize("parts", [(JobPart.SPEC,), (JobPart.RESULT,), tuple(JobPart)])
def test_job_list_has_spec_only_when_include_asks_for_it(home: Context, parts: tuple[JobPart, ...]) -> None:
    large_jobs(home, 1)
    (job,) = listed(home, include=parts).items
    assert bool(job.spec) == (JobPart.SPEC in parts)


def test_a_page_of_large_jobs_ends_early_and_the_next_goes_on(home: Context) -> None:
    large_jobs(home, 10)
    seen: list[int] = []
    cursor, pages = None, 0
    while pages == 0 or cursor is not None:
        page = listed(home, include=(JobPart.SPEC,), cursor=cursor)
        assert len(page.model_dump_json()) <= PAGE_BYTES + SPEC_BYTES + SLACK_BYTES * 2
        seen += [job.spec["steps"] for job in page.items]
        cursor, pages = page.next, pages + 1
    assert seen == list(reversed(range(10)))
    assert pages == 4, "three fit into a page"


def test_a_page_has_a_row_however_large(home: Context) -> None:
    ctx = replace(home, policy=Policy(max_page_bytes=1))
    large_jobs(ctx, 2)
    first = listed(ctx, include=(JobPart.SPEC,))
    assert len(first.items) == 1
    second = listed(ctx, include=(JobPart.SPEC,), cursor=first.next)
    assert [job.spec["steps"] for job in (*first.items, *second.items)] == [1, 0]
    assert second.next is None


def test_a_limit_is_kept_beside_the_bytes(home: Context) -> None:
    large_jobs(home, 3)
    first = listed(home, limit=2)
    assert len(first.items) == 2
    rest = listed(home, limit=2, cursor=first.next)
    assert (len(rest.items), rest.next) == (1, None)


def test_events_logs_and_metrics_end_early_too(home: Context) -> None:
    job = new_job(home)
    lease = claim(home)
    for number in range(10):
        report = NoticeReport(name="a-notice", data={"number": number, "text": "y" * SPEC_BYTES})
        add_notice(home, lease.attempt_id, report)
    add_log_lines(home, lease.attempt_id, LogLines(first=0, lines=tuple("z" * SPEC_BYTES for _ in range(10))))
    values = {f"{name:0100}": 1.0 for name in range(50)}
    points = tuple(StepMetrics(step=step, values=values) for step in range(1, 11))
    put_metrics(home, lease.attempt_id, MetricBatch(points=points))
    for read, last in (
        (lambda after: read_events(home, ANN, job.id, after, 500), lambda item: item.id),
        (lambda after: read_logs(home, ANN, job.id, after, 500), lambda item: item.id),
        (lambda after: read_metrics(home, ANN, job.id, after, 500), lambda item: item.step),
    ):
        after, count, pages = 0, 0, 0
        while True:
            page = read(after)
            assert len(page.model_dump_json()) <= PAGE_BYTES + SPEC_BYTES + SLACK_BYTES * 2
            pages, count = pages + 1, count + len(page.items)
            if page.next is None:
                break
            assert page.next == str(last(page.items[-1]))
            after = int(page.next)
        assert pages >= 3
        assert count in {10, 12}, "ten, and for events the two of the job and its attempt"


def test_datasets_and_nodes_end_early_too(home: Context) -> None:
    ctx = replace(home, policy=Policy(max_page_bytes=1))
    for caption in ("one", "two", "three"):
        new_dataset(ctx, caption=caption)
    for number in (1, 2, 3):
        info = NodeInfo(node_id=f"node_0000000{number}", machine_id=f"m{number}", name="n")
        claim_once(ctx, NODE, Claim(request_id=f"request-{number}", node=info, kinds=("train",)))
    for read in (
        lambda cursor: list_datasets(ctx, ANN, cursor, 500),
        lambda cursor: list_nodes(ctx, ROOT, gone=False, cursor=cursor, limit=500),
    ):
        cursor, ids = None, list[str]()
        while cursor is not None or not ids:
            page = read(cursor)
            assert len(page.items) == 1
            ids.append(page.items[0].id)
            cursor = page.next
        assert len(set(ids)) == len(ids) == 3


def test_histories_do_not_read_the_job(home: Context) -> None:
    job = new_job(home)
    store = _ReadStore(home)
    ctx = replace(home, store=store)  # type: ignore[arg-type]
    read_events(ctx, ANN, job.id, 0, 10)
    read_logs(ctx, ANN, job.id, 0, 10)
    assert "spec" not in " ".join(store.statements)


def test_a_spec_over_its_limit_is_refused_with_both_sizes_and_what_to_do(home: Context) -> None:
    most = home.policy.max_spec_bytes
    room = most - len(json.dumps({"data": ""}, separators=(",", ":")))
    submit(home, ANN, SubmitJob(kind="x-large", spec={"data": "x" * room}), None)
    with pytest.raises(InvalidInput) as refused:
        submit(home, ANN, SubmitJob(kind="x-large", spec={"data": "x" * (room + 1)}), None)
    (fault,) = refused.value.faults
    assert (fault.where, fault.message) == ("spec", f"has {most + 1} bytes as JSON; at most {most} are taken")
    assert "POST /v1/uploads" in fault.hint
