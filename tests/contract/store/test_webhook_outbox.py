"""Events become deliveries, each once, also when transactions commit late."""

import json
from collections.abc import Callable
from dataclasses import replace
from threading import Event, Thread

import pytest
import sqlalchemy as sa
from tests.contract.store.test_audits import ALWAYS, audited, train
from tests.fixtures.contexts import ManualClock
from tests.fixtures.fleets import ToyFleet
from tests.fixtures.notifier import KeptRuns
from tests.fixtures.store_rig import StoreRig
from tests.fixtures.users import ANN, ANN_ADMIN, ANNS_NODE, NODE, ROOT, claim, end, move_in, new_job
from tests.fixtures.webhooks import deliver, webhook, with_webhooks

from giornata.control.context import Context, GovernedFleet
from giornata.control.fleets.operator_actions import quarantine_machine
from giornata.control.fleets.provider_backoff import note_unlisted
from giornata.control.jobs.stop_job import cancel
from giornata.control.monitoring import read_gauges
from giornata.control.notifications.announce import announce
from giornata.control.notifications.fan_out import FanOut
from giornata.control.notifications.manage_webhooks import change_webhook, delete_webhook
from giornata.control.notifications.send_due import send_due
from giornata.control.ports.node_queries.gauges import OutboxGauges
from giornata.control.ports.notifier import RunOutcome, SendFailure
from giornata.domain.errors import FleetRefused, FleetUnavailable
from giornata.domain.jobs.job import JobEvent
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.events import EventType, OperatorEvent
from giornata.protocol.project.webhook_endpoints import ChangeWebhook
from giornata.protocol.specs import AUDIT_KIND
from giornata.store import schema
from giornata.store.database.database import Database


@pytest.fixture
def notifier() -> KeptRuns:
    return KeptRuns()


@pytest.fixture
def there(ctx: Context, notifier: KeptRuns) -> Context:
    found = with_webhooks(ctx, notifier)
    move_in(found)
    return found


def bodies(notifier: KeptRuns) -> list[dict[str, object]]:
    return [json.loads(message.body) for run in notifier.runs for message in run.messages]


def told(notifier: KeptRuns) -> list[tuple[object, object]]:
    return [(each["type"], each["job_id"]) for each in bodies(notifier)]


def written(store: Database) -> list[str]:
    with store.read() as tx:
        return list(tx.connection.scalars(sa.select(schema.webhook_deliveries.c.event_id)))


def note(ctx: Context, job_id: str, number: int) -> Callable[[], None]:
    """Write one event in a transaction of its own."""

    def write() -> None:
        with ctx.store.begin() as tx:
            tx.events.add(job_id, "ann", EventType.JOB_REQUEUED, None, {"number": number}, ctx.clock.now_ms())

    return write


def test_webhook_gets_the_events_that_it_names_of_its_project_from_its_making_on(
    there: Context, notifier: KeptRuns
) -> None:
    new_job(there)
    webhook(there, ANN_ADMIN, "job.canceled", "checkpoint.*")
    webhook(there, ROOT, "*")
    job = new_job(there)
    cancel(there, ANN, job.id)
    assert deliver(there) == 1
    assert told(notifier) == [("job.canceled", job.id)]
    assert deliver(there) == 0


def test_events_of_replay_audits_are_sent_to_nobody(
    there: Context, notifier: KeptRuns, store: Database, clock: ManualClock
) -> None:
    rig = StoreRig(replace(there, policy=replace(there.policy, audits=ALWAYS)), store, clock)
    webhook(there, ANN_ADMIN, "*")
    lease = train(rig)
    audited(rig, 2)
    (run,) = rig.rows(schema.jobs, kind=AUDIT_KIND)
    assert "job.succeeded" in rig.events(run["id"])
    while deliver(there):
        pass
    assert {job_id for _, job_id in told(notifier)} == {lease.job_id}
    assert "audited" in json.dumps(bodies(notifier))  # a notice of the training job


def test_webhook_of_one_job_hears_of_no_other(there: Context, notifier: KeptRuns) -> None:
    first, second = new_job(there), new_job(there)
    webhook(there, ANN_ADMIN, job_id=first.id)
    cancel(there, ANN, second.id)
    cancel(there, ANN, first.id)
    deliver(there)
    assert told(notifier) == [("job.canceled", first.id)]


def test_events_are_turned_once_whoever_runs_the_loop(there: Context, store: Database) -> None:
    webhook(there, ANN_ADMIN)
    job = new_job(there)
    loops = [FanOut(), FanOut()]
    counts = [loop(there) for _ in range(2) for loop in loops]
    cancel(there, ANN, job.id)
    counts += [loops[1](there), loops[0](there)]
    assert counts == [1, 0, 0, 0, 1, 0]
    assert len(set(written(store))) == 2


def test_disabled_webhook_hears_nothing_of_that_time(there: Context, notifier: KeptRuns) -> None:
    made = webhook(there, ANN_ADMIN)
    change_webhook(there, ANN_ADMIN, made.id, ChangeWebhook(enabled=False))
    job = new_job(there)
    assert deliver(there) == 0
    change_webhook(there, ANN_ADMIN, made.id, ChangeWebhook(enabled=True))
    cancel(there, ANN, job.id)
    deliver(there)
    assert told(notifier) == [("job.canceled", job.id)]


def test_deleted_webhook_leaves_nothing(there: Context, store: Database) -> None:
    made = webhook(there, ANN_ADMIN)
    new_job(there)
    deliver(there)
    delete_webhook(there, ANN_ADMIN, made.id)
    assert written(store) == []


def test_event_that_commits_late_below_a_seen_one_is_not_skipped(
    there: Context, store: Database, notifier: KeptRuns
) -> None:
    if store.dialect_name == "sqlite":
        pytest.skip("writers of SQLite take turns: no event commits below one that was seen")
    webhook(there, ANN_ADMIN)
    job = new_job(there)
    fan_out = FanOut()
    assert fan_out(there) == 1
    with there.store.begin() as late:
        late.events.add(job.id, "ann", EventType.JOB_REQUEUED, None, {"number": 1}, there.clock.now_ms())
        note(there, job.id, 2)()
        # The second event is visible with a higher id, and the first one may still come.
        assert [fan_out(there), fan_out(there)] == [0, 0]
    assert [fan_out(there), fan_out(there)] == [2, 0]
    deliver(there)
    assert [each["data"].get("number") for each in bodies(notifier)][1:] == [1, 2]


def test_transactions_that_begin_meanwhile_hold_up_no_event(there: Context, store: Database) -> None:
    if store.dialect_name == "sqlite":
        pytest.skip("writers of SQLite take turns")
    webhook(there, ANN_ADMIN)
    job = new_job(there)
    fan_out = FanOut()
    fan_out(there)
    with there.store.begin() as first:
        first.events.add(job.id, "ann", EventType.JOB_REQUEUED, None, {}, there.clock.now_ms())
        fan_out(there)  # notes an event, and that the first transaction may have an earlier one
        ended, opened = Event(), Event()

        def hold() -> None:
            with there.store.begin() as second:
                second.events.add(job.id, "ann", EventType.JOB_REQUEUED, None, {}, there.clock.now_ms())
                opened.set()
                ended.wait(60)

        thread = Thread(target=hold)
        thread.start()
        assert opened.wait(60)
    note(there, job.id, 3)()
    try:
        # The first has ended: what was noted is settled, though the second is open. The rest waits for the second.
        assert [fan_out(there), fan_out(there)] == [0, 0]
    finally:
        ended.set()
        thread.join()
    assert fan_out(there) == 3


def test_event_without_a_job_reaches_the_owner_in_the_same_transaction(there: Context, notifier: KeptRuns) -> None:
    webhook(there, ROOT, "machine.*")
    webhook(there, ANN_ADMIN, "machine.*")
    data = {"machine_id": "m1", "kind": "train", "reason": "by hand"}
    with pytest.raises(ZeroDivisionError), there.store.begin() as tx:
        announce(tx, there, ROOT.project_id, OperatorEvent.MACHINE_QUARANTINED, data, at_ms=there.clock.now_ms())
        raise ZeroDivisionError
    assert deliver(there) == 0
    with there.store.begin() as tx:
        announce(tx, there, ROOT.project_id, OperatorEvent.MACHINE_QUARANTINED, data, at_ms=there.clock.now_ms())
    assert deliver(there) == 1
    assert [(each["type"], each["job_id"], each["data"]) for each in bodies(notifier)] == [
        ("machine.quarantined", None, data)
    ]


def test_quarantine_is_told_once_to_the_owner_of_the_machine(there: Context, notifier: KeptRuns) -> None:
    webhook(there, ROOT, "machine.quarantined")
    webhook(there, ANN_ADMIN, "machine.quarantined")
    for caller, machine in ((NODE, "m1"), (ANNS_NODE, "desk")):
        new_job(there)
        lease = claim(there, caller, machine=machine, node=f"node_0000000{machine[0]}")
        end(there, lease, Reason.CANCELED, JobEvent.CANCEL)
    for _ in range(2):
        quarantine_machine(there, ROOT, "m1", reason="too hot")
    quarantine_machine(there, ROOT, "desk@ann", reason="too loud")
    deliver(there)
    assert [each["data"] for each in bodies(notifier)] == [
        {"machine_id": "m1", "kind": "train", "reason": "too hot"},
        {"machine_id": "desk", "kind": "train", "reason": "too loud"},
    ]


def test_refusal_of_a_provider_is_told_and_its_absence_is_not(there: Context, notifier: KeptRuns) -> None:
    webhook(there, ROOT, "fleet.refused")
    governed = GovernedFleet(name="gpus", driver="local", fleet=ToyFleet())
    for error in (FleetUnavailable("away"), FleetRefused("no such image"), FleetRefused("no such image")):
        note_unlisted(there, governed, error)
    deliver(there)
    assert [each["data"] for each in bodies(notifier)] == [{"fleet": "gpus", "error": "no such image"}]


def test_lag_of_the_outbox_is_that_of_the_oldest_event_or_delivery(
    there: Context, notifier: KeptRuns, clock: ManualClock
) -> None:
    new_job(there)
    assert read_gauges(there).outbox == OutboxGauges(), "nobody waits for events"
    hook = webhook(there, ANN_ADMIN)
    clock.advance_s(10)
    began_ms = clock.now_ms()
    job = new_job(there)
    clock.advance_s(10)
    cancel(there, ANN, job.id)
    assert read_gauges(there).outbox == OutboxGauges(oldest_event_at_ms=began_ms)
    FanOut()(there)
    assert read_gauges(there).outbox == OutboxGauges(oldest_due_at_ms=clock.now_ms())
    notifier.answer = lambda _: None
    send_due(there)
    assert read_gauges(there).outbox == OutboxGauges(), "it is being sent"
    ((_, done),) = notifier.waiting
    done(RunOutcome(sent=0, failure=SendFailure(message="it hangs")))
    clock.advance_s(3600)
    assert read_gauges(there).outbox == OutboxGauges(), "it waits for its receiver, and not for us"
    delete_webhook(there, ANN_ADMIN, hook.id)
    assert read_gauges(there).outbox == OutboxGauges()


def test_disabled_webhook_and_a_digest_of_tomorrow_are_no_lag(there: Context, clock: ManualClock) -> None:
    hook = webhook(there, ANN_ADMIN, target="ann@example.com", format="mail", daily_digest=True)
    new_job(there)
    FanOut()(there)
    due_ms = read_gauges(there).outbox.oldest_due_at_ms
    assert due_ms is not None and due_ms > clock.now_ms()
    change_webhook(there, ANN_ADMIN, hook.id, ChangeWebhook(enabled=False))
    assert read_gauges(there).outbox == OutboxGauges()
