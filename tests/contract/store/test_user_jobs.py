"""Looking at jobs, ending them, trying them again."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tests.fixtures.contexts import ManualClock
from tests.fixtures.users import (
    ANN,
    ANN_ADMIN,
    ANNS_NODE,
    BOB,
    NODE,
    ROOT,
    claim,
    end,
    have,
    move_in,
    new_dataset,
    new_job,
    progress,
    train,
)

from giornata.control.attempts.claiming.claim import claim_once
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.fleets.nodes import list_nodes
from giornata.control.jobs.reading.job_outputs import (
    read_artifacts,
    read_checkpoints,
    read_events,
    read_logs,
    read_metrics,
)
from giornata.control.jobs.reading.read_curve import read_curve
from giornata.control.jobs.reading.read_jobs import get_job, list_jobs
from giornata.control.jobs.retry import retry
from giornata.control.jobs.stop_job import cancel
from giornata.control.jobs.submission.submit import submit
from giornata.control.policy import Policy
from giornata.control.ports.node_queries.work_rows import ArtifactRow
from giornata.control.timestamps import instant
from giornata.domain.errors import Forbidden, IllegalTransition, InvalidInput, NotFound
from giornata.domain.jobs.job import JobEvent, JobState
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.jobs import Job, JobPage, JobPart
from giornata.protocol.node.work import Claim, NodeInfo

Read = Callable[[Context, Caller, str], object]
VERBS: dict[str, Read] = {
    "get": get_job,
    "cancel": cancel,
    "retry": retry,
    "events": lambda ctx, caller, job_id: read_events(ctx, caller, job_id, 0, 10),
    "logs": lambda ctx, caller, job_id: read_logs(ctx, caller, job_id, 0, 10),
    "metrics": lambda ctx, caller, job_id: read_metrics(ctx, caller, job_id, -1, 10),
    "curve": lambda ctx, caller, job_id: read_curve(ctx, caller, job_id, after_step=-1, points=10),
    "checkpoints": read_checkpoints,
    "artifacts": read_artifacts,
}


@pytest.fixture(autouse=True)
def _home(ctx: Context) -> None:
    move_in(ctx)


def page(ctx: Context, caller: Caller = ANN, **asked: object) -> JobPage:
    usual = {"states": (), "labels": {}, "kind": None, "cursor": None, "limit": 10}
    return list_jobs(ctx, caller, **usual | asked)


def event_types(ctx: Context, job: Job) -> list[str]:
    return [event.type for event in read_events(ctx, ANN, job.id, 0, 100).items]


# ---- who may see what


@pytest.mark.parametrize("verb", VERBS)
def test_d35_a_job_of_another_project_does_not_exist(ctx: Context, verb: str) -> None:
    job = new_job(ctx)
    for unknown in (job.id, "job_unknown", "job\x00"):
        with pytest.raises(NotFound, match=f"there is no job {unknown}"):
            VERBS[verb](ctx, BOB, unknown)
    assert page(ctx, BOB).items == ()
    assert event_types(ctx, job) == ["job.submitted"]
    assert get_job(ctx, ANN, job.id) == job


@pytest.mark.parametrize("verb", VERBS)
def test_a_nodes_key_may_not_use_the_users_verbs(ctx: Context, verb: str) -> None:
    job = new_job(ctx)
    for node in (NODE, ANNS_NODE):
        with pytest.raises(Forbidden):
            VERBS[verb](ctx, node, job.id)
        with pytest.raises(Forbidden):
            page(ctx, node)
        with pytest.raises(Forbidden):
            list_nodes(ctx, node, gone=True, cursor=None, limit=10)


def test_a_members_key_may_not_claim(ctx: Context) -> None:
    new_job(ctx)
    info = NodeInfo(node_id="node_00000001", machine_id="m", name="m")
    for caller in (ANN, ANN_ADMIN, ROOT):
        with pytest.raises(Forbidden):
            claim_once(ctx, caller, Claim(request_id="request-1", node=info, kinds=("train",)))


# ---- cancel


def test_d6_and_d97_canceling_an_unknown_job_is_not_found_and_leaves_no_event(ctx: Context) -> None:
    with pytest.raises(NotFound):
        cancel(ctx, ANN, "job_unknown")
    job = new_job(ctx)
    assert event_types(ctx, job) == ["job.submitted"]


def test_canceling_twice_is_canceling_once(ctx: Context) -> None:
    job = new_job(ctx)
    first = cancel(ctx, ANN, job.id)
    assert first.state is JobState.CANCELED
    assert first.ended_at is not None
    assert cancel(ctx, ANN, job.id) == first
    assert event_types(ctx, job) == ["job.submitted", "job.canceled"]


@pytest.mark.parametrize("event", [JobEvent.SUCCEED, JobEvent.FAIL, JobEvent.EXPIRE])
def test_d5_and_d97_a_job_that_has_ended_is_not_canceled(ctx: Context, event: JobEvent) -> None:
    job = new_job(ctx)
    end(ctx, claim(ctx), Reason.SUCCEEDED, event)
    before = get_job(ctx, ANN, job.id)
    with pytest.raises(IllegalTransition):
        cancel(ctx, ANN, job.id)
    assert get_job(ctx, ANN, job.id) == before


def test_canceling_a_running_job_ends_its_attempt_and_its_bill(ctx: Context, clock: ManualClock) -> None:
    job = new_job(ctx)
    claim(ctx)
    clock.advance_s(20)
    canceled = cancel(ctx, ANN, job.id)
    (attempt,) = canceled.attempts
    assert (attempt.reason, attempt.billed_s, attempt.cost_micro_usd) == (Reason.CANCELED, 20.0, 2000)
    assert (canceled.cost_micro_usd, canceled.cost_usd, canceled.cost_per_step_usd) == (2000, 0.002, None)
    clock.advance_s(20)
    assert get_job(ctx, ANN, job.id) == canceled


# ---- retry


def test_a_retry_goes_on_from_the_checkpoints_with_the_same_spec(ctx: Context, clock: ManualClock) -> None:
    request = train(new_dataset(ctx)).model_copy(update={"deadline_s": 600, "labels": {"a": "1"}, "priority": 3})
    job, _ = submit(ctx, ANN, request, None)
    lease = claim(ctx)
    for step in (2, 4):
        progress(ctx, lease, step=step, committed=f"checkpoint {step}".encode())
    clock.advance_s(100)
    cancel(ctx, ANN, job.id)
    new = retry(ctx, ANN, job.id)
    assert (new.state, new.retry_of, new.spec, new.labels, new.priority) == (
        JobState.QUEUED,
        job.id,
        job.spec,
        {"a": "1"},
        3,
    )
    assert new.deadline_at is not None
    assert (new.deadline_at - new.created_at).total_seconds() == 600
    assert (new.step, new.committed_step, new.cost_micro_usd, new.attempts) == (4, 4, 0, ())
    checkpoints = read_checkpoints(ctx, ANN, new.id).items
    assert [(checkpoint.step, checkpoint.attempt) for checkpoint in checkpoints] == [(4, 0), (2, 0)]
    assert [found.step for found in claim(ctx, machine="m2", node="node_00000002").checkpoints] == [4, 2]
    assert [found.step for found in read_checkpoints(ctx, ANN, job.id).items] == [4, 2], "the old job keeps its own"
    assert get_job(ctx, ANN, job.id).state is JobState.CANCELED


def test_d8_retrying_twice_gives_the_retry_that_is_under_way(ctx: Context) -> None:
    job = new_job(ctx)
    cancel(ctx, ANN, job.id)
    with ThreadPoolExecutor(4) as pool:
        retries = {new.id for new in pool.map(lambda _: retry(ctx, ANN, job.id), range(8))}
    assert len(retries) == 1
    (first,) = retries
    cancel(ctx, ANN, first)
    assert retry(ctx, ANN, job.id).id != first


def test_d4_only_what_ended_badly_is_retried(ctx: Context) -> None:
    job = new_job(ctx)
    with pytest.raises(IllegalTransition, match="queued"):
        retry(ctx, ANN, job.id)
    lease = claim(ctx)
    with pytest.raises(IllegalTransition, match="running"):
        retry(ctx, ANN, job.id)
    end(ctx, lease, Reason.SUCCEEDED, JobEvent.SUCCEED, step=10)
    with pytest.raises(IllegalTransition, match="succeeded"):
        retry(ctx, ANN, job.id)
    for event in (JobEvent.FAIL, JobEvent.EXPIRE):
        other = new_job(ctx)
        end(ctx, claim(ctx), Reason.BAD_SPEC, event)
        assert retry(ctx, ANN, other.id).retry_of == other.id
        cancel(ctx, ANN, retry(ctx, ANN, other.id).id)


# ---- what a job says


def test_time_and_money_are_summed_over_all_attempts(ctx: Context, clock: ManualClock) -> None:
    job = new_job(ctx)
    lease = claim(ctx)
    clock.advance_s(10)
    progress(ctx, lease, step=1)
    clock.advance_s(40)
    progress(ctx, lease, step=5, committed=b"five")
    clock.advance_s(20)
    end(ctx, lease, Reason.PREEMPTED, JobEvent.REQUEUE, step=7)
    waiting = get_job(ctx, ANN, job.id)
    assert (waiting.recovering, waiting.interruptions, waiting.cost_micro_usd) == (True, 1, 7000)
    assert (waiting.useful_s, waiting.lost_s) == (50.0, 20.0)
    lease = claim(ctx, machine="m2", node="node_00000002")
    clock.advance_s(30)
    progress(ctx, lease, step=10)
    running = get_job(ctx, ANN, job.id)
    assert (running.useful_s, running.lost_s) == (50.0, 20.0), "nothing of a running attempt is decided yet"
    end(ctx, lease, Reason.SUCCEEDED, JobEvent.SUCCEED, step=10)
    done = get_job(ctx, ANN, job.id)
    assert (done.useful_s, done.lost_s, done.cost_micro_usd) == (80.0, 20.0, 10_000)
    assert done.cost_per_useful_step_usd == 0.001
    (listed,) = page(ctx).items
    assert listed == done.model_copy(update={"attempts": (), "spec": {}, "result": {}})
    (whole,) = page(ctx, include=tuple(JobPart)).items
    assert whole == done.model_copy(update={"attempts": ()})


def test_d99_every_attempt_keeps_its_own_times_and_the_job_its_first(ctx: Context, clock: ManualClock) -> None:
    job = new_job(ctx)
    at = [instant(clock.now_ms())]

    def later(seconds: float) -> None:
        clock.advance_s(seconds)
        at.append(instant(clock.now_ms()))

    later(5)
    first = claim(ctx)
    later(10)
    end(ctx, first, Reason.PREEMPTED, JobEvent.REQUEUE)
    later(60)
    second = claim(ctx, machine="m2", node="node_00000002")
    later(20)
    end(ctx, second, Reason.SUCCEEDED, JobEvent.SUCCEED, step=10)
    done = get_job(ctx, ANN, job.id)
    assert [(one.started_at, one.ended_at) for one in done.attempts] == [(at[1], at[2]), (at[3], at[4])]
    assert (done.created_at, done.started_at, done.ended_at) == (at[0], at[1], at[4])


def test_d29_a_queued_job_says_why_it_waits(ctx: Context, clock: ManualClock) -> None:
    job = new_job(ctx)
    assert job.waiting_because == "no node for jobs of kind train is connected"
    lease = claim(ctx)
    assert get_job(ctx, ANN, job.id).waiting_because is None
    end(ctx, lease, Reason.CRASHED, JobEvent.REQUEUE)
    second = new_job(ctx)
    assert second.waiting_because == "waiting for its turn, position 2 in the queue"
    with ctx.store.begin() as tx:
        tx.bans.ban(job.id, "m1", Reason.CRASHED, at_ms=clock.now_ms())
    assert "every connected node (1)" in (get_job(ctx, ANN, job.id).waiting_because or "")
    clock.advance_s(ctx.policy.node_gone_after_s + 1)
    assert "is connected" in (get_job(ctx, ANN, second.id).waiting_because or "")


def test_d11_and_d35_nodes_of_another_project_do_not_help(ctx: Context) -> None:
    new_job(ctx)
    claim(ctx, ANNS_NODE)
    assert "position 1" in (new_job(ctx).waiting_because or "")
    assert new_job(ctx, BOB).waiting_because == "no node for jobs of kind train is connected"


def test_logs_metrics_events_and_results_can_be_read(ctx: Context, clock: ManualClock) -> None:
    job = new_job(ctx)
    lease = claim(ctx)
    sha256 = have(ctx, ANN, b"lora")
    with ctx.store.begin() as tx:
        row, attempt = tx.jobs.lock(job.id), tx.attempts.get(lease.attempt_id)
        assert row is not None
        assert attempt is not None
        tx.reports.add_lines(attempt, first=0, lines=["one", "two", "three"], at_ms=clock.now_ms())
        tx.reports.put_metrics([(attempt, step, {"loss": 1.0}) for step in range(3)], at_ms=clock.now_ms())
        result = ArtifactRow(name="löra.safetensors", attempt_id=attempt.id, sha256=sha256, size_bytes=4)
        tx.artifacts.put(row, result, media_type="x/y", at_ms=clock.now_ms())
    logs = read_logs(ctx, ANN, job.id, 0, 2)
    assert [line.line for line in logs.items] == ["one", "two"]
    assert [line.line for line in read_logs(ctx, ANN, job.id, int(logs.next or ""), 2).items] == ["three"]
    metrics = read_metrics(ctx, ANN, job.id, -1, 2)
    assert [point.step for point in metrics.items] == [0, 1]
    rest = read_metrics(ctx, ANN, job.id, int(metrics.next or ""), 2)
    assert ([point.step for point in rest.items], rest.next) == ([2], None)
    events = read_events(ctx, ANN, job.id, 0, 1)
    assert [event.type for event in events.items] == ["job.submitted"]
    assert read_events(ctx, ANN, job.id, int(events.next or ""), 10).items[0].type == "attempt.started"
    (artifact,) = read_artifacts(ctx, ANN, job.id).items
    assert (artifact.name, artifact.sha256, artifact.media_type) == ("löra.safetensors", sha256, "x/y")
    assert artifact.request.method == "GET"


# ---- lists


def test_d34_and_d113_pages_skip_and_repeat_nothing_while_jobs_come_in(ctx: Context, clock: ManualClock) -> None:
    made = []
    for number in range(7):
        clock.advance_s(number % 2)  # some of the same millisecond
        made.append(new_job(ctx).id)
    seen, cursor = [], None
    while True:
        found = page(ctx, cursor=cursor, limit=3)
        seen += [job.id for job in found.items]
        new_job(ctx)
        new_job(ctx, BOB)
        cursor = found.next
        if cursor is None:
            break
    assert seen == made[::-1]


def test_lists_are_filtered_by_a_name_or_the_beginning_of_an_id(ctx: Context) -> None:
    dataset = new_dataset(ctx)
    one, other, third = (
        submit(ctx, ANN, train(dataset).model_copy(update={"name": name}), None)[0]
        for name in ("dog", "dog two", "100%_")
    )

    def matched(word: str, caller: Caller = ANN) -> set[str]:
        return {job.id for job in page(ctx, caller, match=word).items}

    assert matched("dog") == {one.id}
    assert matched(other.id) == {other.id}
    assert matched(other.id.removeprefix("job_")) == {other.id}
    assert matched("job_") == {one.id, other.id, third.id}
    assert matched("100%_") == {third.id}
    assert not matched("%") | matched("_") | matched("dog%") | matched(one.id, BOB)


def test_names_are_searched_for_a_text_of_any_case(ctx: Context) -> None:
    dataset = new_dataset(ctx)
    one, other, third = (
        submit(ctx, ANN, train(dataset).model_copy(update={"name": name}), None)[0].id
        for name in ("Red fox", "a Fox's den", "100%_")
    )

    def searched(text: str, caller: Caller = ANN, **asked: object) -> list[str]:
        return [job.id for job in page(ctx, caller, search=text, **asked).items]

    assert searched("fox") == searched("FOX") == [other, one]
    assert searched("fox", limit=1) == [other]
    assert searched("fox", states=(JobState.CANCELED,)) == searched("fox", BOB) == []
    assert searched("%") == searched("_") == [third]
    assert searched(one) == []
    with pytest.raises(InvalidInput, match="search"):
        searched("a\x00b")


@pytest.mark.parametrize("kind", [None, "train"])
def test_a_page_of_a_search_looks_at_a_bounded_number_of_jobs(
    ctx: Context, clock: ManualClock, kind: str | None
) -> None:
    ctx, dataset, made = replace(ctx, policy=Policy(max_searched_jobs=3)), new_dataset(ctx), []
    for number in range(8):
        clock.advance_s(number % 2)  # some of the same millisecond
        named = train(dataset).model_copy(update={"name": f"fox {number}" if number in {0, 1, 7} else "cat"})
        made.append(submit(ctx, ANN, named, None)[0].id)
    pages, cursor = [], None
    while cursor is not None or not pages:
        found = page(ctx, search="fox", kind=kind, cursor=cursor, limit=2)
        pages.append([job.id for job in found.items])
        cursor = found.next
    assert pages == [[made[7]], [], [made[1], made[0]]]


def test_lists_are_filtered_by_state_label_and_kind(ctx: Context) -> None:
    dataset = new_dataset(ctx)

    def made(**labels: str) -> str:
        return submit(ctx, ANN, train(dataset).model_copy(update={"labels": labels}), None)[0].id

    red, blue, plain = made(color="red", size="1"), made(color="blue", size="1"), made()
    cancel(ctx, ANN, blue)
    assert [job.id for job in page(ctx, states=(JobState.QUEUED,)).items] == [plain, red]
    assert [job.id for job in page(ctx, states=(JobState.CANCELED, JobState.FAILED)).items] == [blue]
    assert [job.id for job in page(ctx, labels={"size": "1"}).items] == [blue, red]
    assert [job.id for job in page(ctx, labels={"size": "1", "color": "red"}).items] == [red]
    assert page(ctx, labels={"color": "green"}).items == ()
    assert page(ctx, kind="x-other").items == ()
    assert len(page(ctx, kind="train").items) == 3


@pytest.mark.parametrize(
    "asked",
    [
        {"cursor": "garbage"},
        {"cursor": ""},
        {"cursor": "ключ"},
        {"cursor": "WzEsMl0"},
        {"limit": 0},
        {"limit": 1001},
        {"kind": "x\x00"},
        {"match": "x\x00"},
        {"labels": {"a'\"b": "c"}},
        {"labels": {"a": "\x00"}},
    ],
    ids=str,
)
def test_d113_foreign_cursor_is_refused(ctx: Context, asked: dict[str, object]) -> None:
    with pytest.raises(InvalidInput) as caught:
        page(ctx, **asked)
    assert caught.value.faults[0].where.split(".")[0] in {"cursor", "limit", "kind", "labels", "match"}
