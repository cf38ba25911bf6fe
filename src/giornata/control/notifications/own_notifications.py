"""A person's own notifications: a webhook of the format mail that tells one person of the own jobs in a project."""

from collections.abc import Mapping

from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.notifications.sealed_target import SealedTarget
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.people_store import UserRecord
from giornata.control.ports.user_queries.webhook_store import WebhookRecord
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import Forbidden, NotFound
from giornata.protocol.account.notifications import Notifications, SetNotifications, ToldJobs
from giornata.protocol.events import EventType
from giornata.protocol.project.webhook_endpoints import WebhookFormat

FAILURES = (EventType.JOB_FAILED, EventType.JOB_EXPIRED, EventType.JOB_PAUSED)
EVENTS: Mapping[ToldJobs, tuple[EventType, ...]] = {
    ToldJobs.FAILURES: FAILURES,
    ToldJobs.ALL: (*FAILURES, EventType.JOB_SUCCEEDED, EventType.JOB_CANCELED),
}


def read_notifications(ctx: Context, caller: Caller) -> Notifications:
    """Return what the person is told in the caller's project. Raises Forbidden without a person, and NotFound for a
    person of no project.
    """
    with ctx.store.read() as tx:
        person = _person(tx, caller)
        return _reply(caller, person, tx.webhooks.of_person(person.id, project_id=caller.project_id))


def set_notifications(ctx: Context, caller: Caller, request: SetNotifications) -> Notifications:
    """Tell the person by mail of the own jobs in the caller's project, from now on, or no more.

    Raises Forbidden, NotFound, InvalidInput where the server sends no mail, and Unavailable where nothing can be
    sealed.
    """
    with ctx.store.read() as tx:
        email = _person(tx, caller).email
    if request.jobs is not ToldJobs.NONE:
        ctx.notifier.check(WebhookFormat.MAIL, email, where="jobs")
    with ctx.store.begin() as tx:
        person = tx.users.lock(_person(tx, caller).id)  # two that ask at a time make one webhook
        if person is None:
            raise NotFound("there is no such person")
        standing = tx.webhooks.of_person(person.id, project_id=caller.project_id)
        if request.jobs is ToldJobs.NONE:
            tx.webhooks.drop_of_person(person.id, project_id=caller.project_id)
        elif standing is None:
            tx.webhooks.add(_webhook(ctx, tx, caller, person, request))
        else:
            events = list(EVENTS[request.jobs])
            tx.webhooks.update(standing.id, events=events, daily_digest=request.daily_digest)
        changes = {"jobs": request.jobs, "daily_digest": request.daily_digest}
        record_call(tx, caller, AuditVerb.NOTIFICATIONS_SET, person.id, at_ms=ctx.clock.now_ms(), changes=changes)
        return _reply(caller, person, tx.webhooks.of_person(person.id, project_id=caller.project_id))


def _person(tx: Transaction, caller: Caller) -> UserRecord:
    if not caller.acts_as_person or caller.user_id is None:
        raise Forbidden("this takes a person: sign in, or use the key of giornata login")
    user = tx.users.get(caller.user_id)
    if user is None or not caller.project_id:
        raise NotFound("you are in no project")
    return user


def _webhook(
    ctx: Context, tx: Transaction, caller: Caller, person: UserRecord, request: SetNotifications
) -> WebhookRecord:
    webhook_id = ctx.names.new("wh")
    held = SealedTarget(target=person.email)
    return WebhookRecord(
        id=webhook_id,
        project_id=caller.project_id,
        job_id=None,
        format=WebhookFormat.MAIL,
        events=EVENTS[request.jobs],
        target=person.email,
        sealed=held.seal(ctx.sealer, project_id=caller.project_id, webhook_id=webhook_id),
        daily_digest=request.daily_digest,
        enabled=True,
        disabled_because="",
        begins_after=tx.webhook_deliveries.newest_event(),
        old_secret_until_ms=None,
        created_at_ms=ctx.clock.now_ms(),
        user_id=person.id,
        created_by=caller.maker,
    )


def _reply(caller: Caller, person: UserRecord, webhook: WebhookRecord | None) -> Notifications:
    jobs = ToldJobs.NONE
    if webhook is not None:
        jobs = ToldJobs.ALL if EventType.JOB_SUCCEEDED in webhook.events else ToldJobs.FAILURES
    digest = webhook is not None and webhook.daily_digest
    return Notifications(project_id=caller.project_id, email=person.email, jobs=jobs, daily_digest=digest)
