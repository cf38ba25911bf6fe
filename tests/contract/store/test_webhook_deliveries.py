"""Deliveries: sent in order, tried again, dead, replayed, and taken by one server at a time."""

import json

import pytest
from tests.fixtures.contexts import ManualClock
from tests.fixtures.hot_path import Cost, counted_statements
from tests.fixtures.notifier import KeptRuns, failing
from tests.fixtures.users import ANN_ADMIN, move_in, new_job
from tests.fixtures.webhooks import URL, deliver, webhook, with_webhooks

from giornata.control.context import Context
from giornata.control.notifications.deliveries import list_deliveries, replay_deliveries, send_test
from giornata.control.notifications.manage_webhooks import change_webhook, read_webhook, rotate_webhook
from giornata.control.notifications.send_due import drop_old, send_due
from giornata.control.ports.notifier import MessageRun, RunOutcome, SendFailure
from giornata.domain.accounts.notifications import RETRY_DELAYS_S, DeliveryState
from giornata.domain.errors import Conflict
from giornata.protocol.events import EventType
from giornata.protocol.project.webhook_endpoints import (
    ChangeWebhook,
    ReplayDeliveries,
    RotateWebhook,
    WebhookDelivery,
    WebhookFormat,
)
from giornata.protocol.project.webhooks import is_genuine, signed_headers

DAY_S = 86_400.0


@pytest.fixture
def notifier() -> KeptRuns:
    return KeptRuns()


@pytest.fixture
def there(ctx: Context, notifier: KeptRuns) -> Context:
    found = with_webhooks(ctx, notifier)
    move_in(found)
    return found


@pytest.fixture
def jobs(there: Context) -> list[str]:
    """Two jobs, of which events may tell."""
    return [new_job(there).id for _ in range(2)]


def happen(ctx: Context, job_id: str, *numbers: int) -> None:
    with ctx.store.begin() as tx:
        for number in numbers:
            data = {"number": number}
            tx.events.add(job_id, "ann", EventType.JOB_REQUEUED, None, data, ctx.clock.now_ms())


def sent(run: MessageRun) -> list[int]:
    return [json.loads(message.body)["data"]["number"] for message in run.messages]


def listed(ctx: Context, webhook_id: str) -> list[WebhookDelivery]:
    """The deliveries, oldest first."""
    page = list_deliveries(ctx, ANN_ADMIN, webhook_id, state=None, cursor=None, limit=500)
    return page.items[::-1]


def states(ctx: Context, webhook_id: str) -> list[str]:
    return [each.state.value for each in listed(ctx, webhook_id)]


def test_failure_holds_up_its_job_and_no_other(
    there: Context, notifier: KeptRuns, jobs: list[str], clock: ManualClock
) -> None:
    made = webhook(there, ANN_ADMIN)
    happen(there, jobs[0], 1, 2, 3)
    happen(there, jobs[1], 10)

    def second_fails(run: MessageRun) -> RunOutcome:
        failure = SendFailure(message="the target answered 500", status=500)
        bad = [place for place, number in enumerate(sent(run)) if number == 2]
        return RunOutcome(sent=bad[0], status=200, failure=failure) if bad else RunOutcome(sent=len(run.messages))

    notifier.answer = second_fails
    deliver(there)
    assert sorted(map(sent, notifier.runs)) == [[1, 2, 3], [10]]
    assert states(there, made.id) == ["delivered", "pending", "pending", "delivered"]
    assert deliver(there) == 0
    notifier.answer = KeptRuns().answer
    clock.advance_s(RETRY_DELAYS_S[0] * 2)
    assert deliver(there) == 2
    assert sent(notifier.runs[-1]) == [2, 3]
    assert [each.tries for each in listed(there, made.id)] == [1, 2, 1, 1]


def test_delivery_dies_after_three_days_and_lives_again_when_it_is_replayed(
    there: Context, notifier: KeptRuns, jobs: list[str], clock: ManualClock
) -> None:
    made = webhook(there, ANN_ADMIN)
    happen(there, jobs[0], 1)
    notifier.answer = failing(503)
    began_ms = clock.now_ms()
    deliver(there)
    while (due := listed(there, made.id)[0].next_try_at) is not None:
        clock.advance_s(due.timestamp() - clock.now_ms() / 1000)
        send_due(there)
    took_s = (clock.now_ms() - began_ms) / 1000
    assert 0.75 * 3 * DAY_S < took_s < 1.25 * 3 * DAY_S
    (dead,) = listed(there, made.id)
    assert (dead.state, dead.status, dead.tries) == (DeliveryState.DEAD, 503, len(RETRY_DELAYS_S) + 1)
    assert dead.error == "the target answered 503"
    assert read_webhook(there, ANN_ADMIN, made.id).dead == 1
    notifier.answer = KeptRuns().answer
    assert replay_deliveries(there, ANN_ADMIN, made.id, ReplayDeliveries()).replayed == 1
    assert send_due(there) == 1
    assert {message.id for run in notifier.runs for message in run.messages} == {dead.event_id}
    assert states(there, made.id) == ["delivered"]
    assert replay_deliveries(there, ANN_ADMIN, made.id, ReplayDeliveries(delivery_ids=[dead.id])).replayed == 1
    assert states(there, made.id) == ["pending"]


def test_target_that_is_gone_disables_its_webhook(there: Context, notifier: KeptRuns, jobs: list[str]) -> None:
    made = webhook(there, ANN_ADMIN)
    happen(there, jobs[0], 1, 2)
    notifier.answer = failing(410, gone=True)
    deliver(there)
    shown = read_webhook(there, ANN_ADMIN, made.id)
    assert (shown.enabled, shown.disabled_because) == (False, "the target wants no more: the target answered 410")
    assert states(there, made.id) == ["dead", "pending"]
    assert send_due(there) == 0
    with pytest.raises(Conflict):
        replay_deliveries(there, ANN_ADMIN, made.id, ReplayDeliveries())
    change_webhook(there, ANN_ADMIN, made.id, ChangeWebhook(enabled=True))
    notifier.answer = KeptRuns().answer
    assert send_due(there) == 1


def test_delivery_that_is_being_sent_is_left_alone_until_its_time_is_over(
    there: Context, notifier: KeptRuns, jobs: list[str], clock: ManualClock
) -> None:
    made = webhook(there, ANN_ADMIN)
    happen(there, jobs[0], 1)
    notifier.answer = lambda run: None
    assert deliver(there) == 1
    assert send_due(there) == 0
    clock.advance_s(notifier.longest_run_s + 60)
    assert send_due(there) == 1  # whoever had taken it is thought dead
    first, second = (done for _, done in notifier.waiting)
    first(RunOutcome(sent=0, failure=SendFailure(message="too late")))
    assert listed(there, made.id)[0].error == ""
    assert send_due(there) == 0
    second(RunOutcome(sent=1, status=200))
    assert states(there, made.id) == ["delivered"]


def test_webhook_has_few_chains_on_their_way_and_one_once_it_fails(
    there: Context, notifier: KeptRuns, clock: ManualClock
) -> None:
    made = webhook(there, ANN_ADMIN)
    most = there.policy.max_runs_per_webhook
    tests = [send_test(there, ANN_ADMIN, made.id) for _ in range(most + 3)]
    notifier.answer = lambda run: None
    assert send_due(there) == most
    assert send_due(there) == 0
    failure = RunOutcome(sent=0, failure=SendFailure(message="no answer"))
    for _, done in notifier.waiting:
        done(failure)
    notifier.waiting.clear()
    assert send_due(there) == 1
    assert send_due(there) == 0
    notifier.waiting.pop()[1](RunOutcome(sent=1, status=200))
    clock.advance_s(60)
    assert send_due(there) == 1
    assert len(tests) == len(listed(there, made.id))


def test_rotation_signs_with_both_secrets_until_the_overlap_ends(
    there: Context, notifier: KeptRuns, clock: ManualClock
) -> None:
    made = webhook(there, ANN_ADMIN)
    rotated = rotate_webhook(there, ANN_ADMIN, made.id, RotateWebhook(overlap_s=60))
    assert made.secret is not None
    assert rotated.secret is not None
    assert made.secret != rotated.secret
    genuine = []
    for _ in range(2):
        send_test(there, ANN_ADMIN, made.id)
        send_due(there)
        run = notifier.runs[-1]
        body = run.messages[0].body.encode()
        headers = signed_headers(run.secrets, delivery_id="evt_1", timestamp_s=100, body=body)
        genuine.append([is_genuine(each, headers, body, now_s=100) for each in (made.secret, rotated.secret)])
        clock.advance_s(60)
    assert genuine == [[True, True], [False, True]]


def test_digest_is_one_message_a_day(there: Context, notifier: KeptRuns, jobs: list[str], clock: ManualClock) -> None:
    made = webhook(there, ANN_ADMIN, format=WebhookFormat.SLACK, daily_digest=True)
    happen(there, jobs[0], 1, 2)
    happen(there, jobs[1], 3)
    assert deliver(there) == 0
    notifier.answer = failing()
    clock.advance_s(DAY_S)
    assert deliver(there) == 3
    assert states(there, made.id) == ["pending"] * 3
    notifier.answer = KeptRuns().answer
    clock.advance_s(60)
    happen(there, jobs[0], 4)
    assert deliver(there) == 3
    (message,) = notifier.runs[-1].messages
    assert json.loads(message.body)["text"].startswith("3 events of the day\n")
    assert states(there, made.id) == ["delivered"] * 3 + ["pending"]


def test_ended_deliveries_are_deleted_when_they_are_old(
    there: Context, notifier: KeptRuns, clock: ManualClock
) -> None:
    made = webhook(there, ANN_ADMIN)
    send_test(there, ANN_ADMIN, made.id)
    send_due(there)
    send_test(there, ANN_ADMIN, made.id)
    clock.advance_s(there.policy.webhook_deliveries_kept_s - 1)
    assert drop_old(there) == 0
    clock.advance_s(2)
    assert drop_old(there) == 1
    assert states(there, made.id) == ["pending"]


def test_targets_that_hang_add_no_statement_to_a_round(there: Context, notifier: KeptRuns, jobs: list[str]) -> None:
    webhook(there, ANN_ADMIN)
    happen(there, jobs[0], 0)
    deliver(there)  # the key that names machines is read once
    happen(there, jobs[0], 1)
    alone = statements_of_round(there)
    assert len(notifier.runs) == 2
    notifier.answer = lambda run: None if "hang" in run.target else RunOutcome(sent=len(run.messages), status=200)
    for number in range(20):
        webhook(there, ANN_ADMIN, target=f"https://hang.example/{number}")
    for job_id in jobs:
        happen(there, job_id, *range(10))
    deliver(there)
    assert len(notifier.waiting) == 20 * len(jobs)
    happen(there, jobs[0], 2)
    runs = len(notifier.runs)
    beside = statements_of_round(there)
    assert [run.target for run in notifier.runs[runs:]] == [URL]
    assert len(beside) == len(alone), beside


def statements_of_round(ctx: Context) -> list[str]:
    """What the loops of webhooks send to the database for what has happened until now."""
    cost = Cost()
    with counted_statements(ctx.store, cost):
        assert deliver(ctx) == 1
    return cost.statements
