"""A project's webhooks: made, listed, changed, rotated, deleted."""

from collections.abc import Mapping

from giornata.control.access.permissions import require_admin
from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.notifications.sealed_target import SealedTarget, new_secret, shown_target, unseal
from giornata.control.pages import check_limit, cut, decode_cursor
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.webhook_store import WebhookRecord
from giornata.control.timestamps import instant
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.accounts.notifications import DeliveryState
from giornata.domain.errors import Conflict, Fault, InvalidInput, NotFound, collecting
from giornata.protocol.project.webhook_endpoints import (
    ChangeWebhook,
    CreateWebhook,
    RotateWebhook,
    SecretOfWebhook,
    Webhook,
    WebhookFormat,
    WebhookPage,
)


def create_webhook(ctx: Context, caller: Caller, request: CreateWebhook) -> SecretOfWebhook:
    """Send events to a target from now on; the reply shows the signing secret this once.

    Raises Forbidden for a caller that is no admin, InvalidInput with every fault, Conflict for a project that has as
    many webhooks as it may, and Unavailable where nothing can be sealed.
    """
    require_admin(caller)
    target = request.target.get_secret_value()
    _check(ctx, caller, request, target)
    webhook_id, now_ms = ctx.names.new("wh"), ctx.clock.now_ms()
    held = SealedTarget(target=target, secret=new_secret() if request.format is WebhookFormat.STANDARD else "")
    sealed = held.seal(ctx.sealer, project_id=caller.project_id, webhook_id=webhook_id)
    with ctx.store.begin() as tx:
        most = ctx.policy.max_webhooks_per_project
        if tx.webhooks.count(caller.project_id) >= most:
            raise Conflict(f"this project has {most} webhooks, and may have no more: delete one")
        record = WebhookRecord(
            id=webhook_id,
            project_id=caller.project_id,
            job_id=request.job_id,
            format=request.format,
            events=request.events,
            target=shown_target(request.format, target),
            sealed=sealed,
            daily_digest=request.daily_digest,
            enabled=True,
            disabled_because="",
            begins_after=tx.webhook_deliveries.newest_event(),
            old_secret_until_ms=None,
            created_at_ms=now_ms,
            created_by=caller.maker,
        )
        tx.webhooks.add(record)
        changes = {"format": record.format, "events": list(record.events), "job_id": record.job_id}
        record_call(tx, caller, AuditVerb.WEBHOOK_CREATE, webhook_id, at_ms=now_ms, changes=changes)
    return _with_secret(record, held)


def _check(ctx: Context, caller: Caller, request: CreateWebhook, target: str) -> None:
    faults: list[Fault] = []
    with collecting(faults):
        ctx.notifier.check(request.format, target, where="target")
    if request.job_id is not None:
        with ctx.store.read() as tx:
            if not tx.job_reads.exists(request.job_id, project_id=caller.project_id):
                faults.append(Fault(where="job_id", message=f"there is no job {request.job_id}"))
    if faults:
        raise InvalidInput(faults)


def list_webhooks(ctx: Context, caller: Caller, cursor: str | None, limit: int) -> WebhookPage:
    """Return a page of the project's webhooks, newest first. Raises Forbidden, InvalidInput."""
    require_admin(caller)
    check_limit(limit)
    with ctx.store.read() as tx:
        rows = tx.webhooks.page(caller.project_id, before=decode_cursor(cursor), limit=limit + 1)
        counts = tx.webhook_deliveries.counts([each.id for each in rows])
    page, following = cut(rows, limit, lambda each: (each.created_at_ms, each.id))
    return WebhookPage(items=[_reply(each, counts.get(each.id, {})) for each in page], next=following)


def read_webhook(ctx: Context, caller: Caller, webhook_id: str) -> Webhook:
    """Return one of the project's webhooks. Raises Forbidden, NotFound."""
    with ctx.store.read() as tx:
        return _shown(tx, require_webhook(tx, caller, webhook_id))


def change_webhook(ctx: Context, caller: Caller, webhook_id: str, request: ChangeWebhook) -> Webhook:
    """Enable or disable a webhook, or change its events. What waits is sent once it is enabled again.

    Raises Forbidden, NotFound.
    """
    with ctx.store.begin() as tx:
        record = require_webhook(tx, caller, webhook_id)
        changed: dict[str, object] = {}
        if request.events is not None:
            changed["events"] = request.events
        if request.enabled is not None:
            changed |= {"enabled": request.enabled, "disabled_because": ""}
            if request.enabled and not record.enabled:
                changed["begins_after"] = tx.webhook_deliveries.newest_event()
        if changed:
            tx.webhooks.update(record.id, **changed)
            said = {"enabled": request.enabled, "events": None if request.events is None else list(request.events)}
            record_call(tx, caller, AuditVerb.WEBHOOK_CHANGE, webhook_id, at_ms=ctx.clock.now_ms(), changes=said)
        return _shown(tx, require_webhook(tx, caller, webhook_id))


def rotate_webhook(ctx: Context, caller: Caller, webhook_id: str, request: RotateWebhook) -> SecretOfWebhook:
    """Give the webhook a new signing secret. The one before signs beside it until the overlap ends.

    Raises Forbidden, NotFound, and Conflict for a format that is not signed.
    """
    with ctx.store.begin() as tx:
        record = require_webhook(tx, caller, webhook_id)
        if record.format is not WebhookFormat.STANDARD:
            raise Conflict(f"webhooks of the format {record.format} have no signing secret")
        held = unseal(ctx.sealer, record).rotated()
        now_ms = ctx.clock.now_ms()
        until_ms = now_ms + request.overlap_s * 1000
        sealed = held.seal(ctx.sealer, project_id=record.project_id, webhook_id=record.id)
        tx.webhooks.update(record.id, sealed=sealed, old_secret_until_ms=until_ms)
        verb = AuditVerb.WEBHOOK_ROTATE
        record_call(tx, caller, verb, webhook_id, at_ms=now_ms, changes={"previous_until_ms": until_ms})
        return _with_secret(require_webhook(tx, caller, webhook_id), held)


def delete_webhook(ctx: Context, caller: Caller, webhook_id: str) -> Webhook:
    """Delete a webhook and its deliveries. Raises Forbidden, NotFound."""
    with ctx.store.begin() as tx:
        shown = _shown(tx, require_webhook(tx, caller, webhook_id))
        tx.webhooks.drop(webhook_id, project_id=caller.project_id)
        record_call(tx, caller, AuditVerb.WEBHOOK_DELETE, webhook_id, at_ms=ctx.clock.now_ms())
    return shown


def require_webhook(tx: Transaction, caller: Caller, webhook_id: str) -> WebhookRecord:
    """Return the project's webhook. Raises Forbidden for a caller that is no admin, and NotFound."""
    require_admin(caller)
    record = tx.webhooks.get(webhook_id, project_id=caller.project_id)
    if record is None:
        raise NotFound(f"there is no webhook {webhook_id}")
    return record


def _shown(tx: Transaction, record: WebhookRecord) -> Webhook:
    return _reply(record, tx.webhook_deliveries.counts([record.id]).get(record.id, {}))


def _reply(record: WebhookRecord, counts: Mapping[DeliveryState, int]) -> Webhook:
    return Webhook(
        id=record.id,
        target=record.target,
        format=record.format,
        events=list(record.events),
        job_id=record.job_id,
        daily_digest=record.daily_digest,
        enabled=record.enabled,
        disabled_because=record.disabled_because,
        waiting=counts.get(DeliveryState.PENDING, 0) + counts.get(DeliveryState.SENDING, 0),
        dead=counts.get(DeliveryState.DEAD, 0),
        old_secret_until=None if record.old_secret_until_ms is None else instant(record.old_secret_until_ms),
        created_at=instant(record.created_at_ms),
        created_by=record.created_by,
    )


def _with_secret(record: WebhookRecord, held: SealedTarget) -> SecretOfWebhook:
    return SecretOfWebhook(**_reply(record, {}).model_dump(), secret=held.secret or None)
