"""People are told by mail of their own jobs, and of no other."""

from dataclasses import replace

import pytest
import sqlalchemy as sa
from tests.fixtures.notifier import KeptRuns
from tests.fixtures.people import ROOT, new_person
from tests.fixtures.users import ANN, ANN_ADMIN, BOB, move_in, new_job
from tests.fixtures.webhooks import deliver, with_webhooks

from giornata.control.access.authenticate import authenticate
from giornata.control.access.keys import create_key
from giornata.control.access.members import remove_member
from giornata.control.access.users import change_user
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.stop_job import cancel
from giornata.control.notifications.manage_webhooks import list_webhooks, read_webhook
from giornata.control.notifications.own_notifications import read_notifications, set_notifications
from giornata.domain.errors import Forbidden, NotFound
from giornata.protocol.account.notifications import SetNotifications, ToldJobs
from giornata.protocol.account.people import ChangeUser, Role
from giornata.protocol.events import EventType
from giornata.protocol.project.admin import CreateKey, Scope
from giornata.store import schema


@pytest.fixture
def notifier() -> KeptRuns:
    return KeptRuns()


@pytest.fixture
def there(ctx: Context, notifier: KeptRuns) -> Context:
    found = with_webhooks(ctx, notifier)
    move_in(found)
    return found


@pytest.fixture
def eve(there: Context) -> Caller:
    """A member of the project of ANN, who signed in."""
    return member(there, "eve")


def member(ctx: Context, name: str) -> Caller:
    user = new_person(ctx, name, {"ann": Role.MEMBER})
    return replace(ANN, key_id=f"session_{name}", user_id=user.id, is_session=True)


def wanted(jobs: ToldJobs = ToldJobs.ALL, *, daily_digest: bool = False) -> SetNotifications:
    return SetNotifications(jobs=jobs, daily_digest=daily_digest)


def told(notifier: KeptRuns) -> list[tuple[str, str]]:
    """Target and subject of each mail."""
    return [(run.target, message.subject) for run in notifier.runs for message in run.messages]


def ends(ctx: Context, job_id: str, event: EventType) -> None:
    with ctx.store.begin() as tx:
        tx.events.add(job_id, "ann", event, None, {}, ctx.clock.now_ms())


def test_person_is_told_of_jobs_submitted_by_a_session_or_an_own_key(
    there: Context, notifier: KeptRuns, eve: Caller
) -> None:
    set_notifications(there, eve, wanted())
    key = authenticate(there, create_key(there, eve, CreateKey(scope=Scope.MEMBER)).secret)
    own = [new_job(there, eve).id, new_job(there, key).id]
    others = [new_job(there, each) for each in (ANN, member(there, "kim"), BOB)]
    for job_id in own:
        cancel(there, ANN_ADMIN, job_id)
    for job, caller in zip(others, (ANN_ADMIN, ANN_ADMIN, BOB), strict=True):
        cancel(there, caller, job.id)
    deliver(there)
    assert sorted(told(notifier)) == sorted(("eve@example.com", f"Giornata: job.canceled {each}") for each in own)


def test_failures_alone_are_told_where_the_person_wants_no_more(
    there: Context, notifier: KeptRuns, eve: Caller
) -> None:
    set_notifications(there, eve, wanted())
    set_notifications(there, eve, wanted(ToldJobs.FAILURES))
    assert read_notifications(there, eve).jobs is ToldJobs.FAILURES
    job = new_job(there, eve)
    for event in (EventType.JOB_SUCCEEDED, EventType.JOB_CANCELED, EventType.JOB_FAILED, EventType.JOB_EXPIRED):
        ends(there, job.id, event)
    while deliver(there):
        pass
    assert [subject.split()[1] for _, subject in told(notifier)] == ["job.failed", "job.expired"]


def test_digest_is_one_mail_of_the_day(there: Context, notifier: KeptRuns, eve: Caller) -> None:
    set_notifications(there, eve, wanted(daily_digest=True))
    for _ in range(3):
        ends(there, new_job(there, eve).id, EventType.JOB_FAILED)
    assert deliver(there) == 0
    there.clock.advance_s(24 * 3600)
    deliver(there)
    assert told(notifier) == [("eve@example.com", "Giornata: 3 events of the day")]


def test_owner_of_the_project_sees_nothing_of_the_notifications_of_others(there: Context, eve: Caller) -> None:
    set_notifications(there, eve, wanted())
    with there.store.read() as tx:
        webhook_id = str(tx.connection.scalar(sa.select(schema.webhooks.c.id)))
    assert list_webhooks(there, ANN_ADMIN, None, 10).items == []
    with pytest.raises(NotFound):
        read_webhook(there, ANN_ADMIN, webhook_id)
    kim = member(there, "kim")
    assert read_notifications(there, kim).jobs is ToldJobs.NONE
    set_notifications(there, kim, wanted(ToldJobs.NONE))
    assert read_notifications(there, eve).jobs is ToldJobs.ALL


@pytest.mark.parametrize("leaves", ["removed", "deactivated", "wants none"])
def test_person_who_left_is_told_nothing_more(there: Context, notifier: KeptRuns, eve: Caller, leaves: str) -> None:
    set_notifications(there, eve, wanted())
    job = new_job(there, eve)
    if leaves == "removed":
        remove_member(there, replace(ANN_ADMIN, user_id="user_ann"), "ann", str(eve.user_id))
    elif leaves == "deactivated":
        change_user(there, ROOT, str(eve.user_id), ChangeUser(active=False))
    else:
        set_notifications(there, eve, wanted(ToldJobs.NONE))
    ends(there, job.id, EventType.JOB_FAILED)
    deliver(there)
    assert told(notifier) == []
    with there.store.read() as tx:
        assert tx.connection.execute(sa.select(schema.webhooks)).all() == []


def test_notifications_are_for_people_of_a_project_alone(there: Context, eve: Caller) -> None:
    for key in (ANN, ANN_ADMIN):
        with pytest.raises(Forbidden, match="takes a person"):
            set_notifications(there, key, wanted())
    with pytest.raises(NotFound, match="no project"):
        read_notifications(there, replace(eve, project_id=""))
