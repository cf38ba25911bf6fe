"""The project: its members, keys, secrets by name, and webhooks."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import Response

from giornata.control.access import invitations, keep_secrets, keys, members
from giornata.control.notifications import deliveries, manage_webhooks, own_notifications
from giornata.dashboard.forms import asked_of, changed, said_of, status_of_page, whole_number
from giornata.dashboard.rendering import render
from giornata.dashboard.visit import Visit, action, page, see
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.account.notifications import SetNotifications, ToldJobs
from giornata.protocol.account.people import CreateInvitation, Role, SetMember
from giornata.protocol.project.admin import MOST_KEY_TTL_S, CreateKey, Scope
from giornata.protocol.project.secrets import SetSecret
from giornata.protocol.project.webhook_endpoints import CreateWebhook, ReplayDeliveries, WebhookFormat

PER_PAGE = 50
DAY_S = 86_400
OFFERED = (Scope.MEMBER, Scope.JOBS_READ, Scope.GENERATE, Scope.ADMIN, Scope.NODE)
Faults = Mapping[str, str]


def show(visit: Visit, *, faults: Faults | None = None, invited: Any = None, refusal: str = "") -> Response:
    """Show the project's members and its open invitations."""
    people = members.list_members(visit.ctx, visit.caller, visit.project_id)
    governs = visit.may(Scope.ADMIN)
    asked = invitations.list_invitations(visit.ctx, visit.caller, None, PER_PAGE).items if governs else ()
    return render(
        visit,
        "project.html",
        status=status_of_page(faults, refusal),
        tab="members",
        members=people.items[:PER_PAGE],
        invitations=[each for each in asked if each.accepted_at is None and each.revoked_at is None],
        roles=[(str(role), str(role)) for role in Role],
        governs=governs,
        invited=invited,
        mails=own_notifications.read_notifications(visit.ctx, visit.caller),
        told=[(str(each), str(each)) for each in ToldJobs],
        faults=faults or {},
        refusal=refusal,
    )


def show_keys(visit: Visit, *, faults: Faults | None = None, created: Any = None, refusal: str = "") -> Response:
    """Show keys and the names of secrets."""
    found = keys.list_keys(visit.ctx, visit.caller, visit.query("cursor"), PER_PAGE)
    governs = visit.may(Scope.ADMIN)
    return render(
        visit,
        "project_keys.html",
        status=status_of_page(faults, refusal),
        tab="keys",
        keys=found.items,
        next_url=visit.url("/settings/keys", cursor=found.next) if found.next else "",
        secrets=keep_secrets.list_secrets(visit.ctx, visit.caller).items[:PER_PAGE] if governs else (),
        scopes=[(str(each), str(each)) for each in OFFERED],
        governs=governs,
        created=created,
        faults=faults or {},
        refusal=refusal,
        typed=visit.form.typed(),
    )


def show_webhooks(visit: Visit, *, faults: Faults | None = None, created: Any = None, refusal: str = "") -> Response:
    """Show webhooks with what waits for them."""
    found = manage_webhooks.list_webhooks(visit.ctx, visit.caller, visit.query("cursor"), PER_PAGE)
    return render(
        visit,
        "project_webhooks.html",
        status=status_of_page(faults, refusal),
        tab="webhooks",
        webhooks=found.items,
        formats=[(str(each), str(each)) for each in WebhookFormat],
        next_url=visit.url("/settings/webhooks", cursor=found.next) if found.next else "",
        created=created,
        faults=faults or {},
        refusal=refusal,
        typed=visit.form.typed(),
    )


def show_deliveries(visit: Visit) -> Response:
    """Show the deliveries of one webhook, newest first."""
    webhook_id = visit.path("webhook_id")
    webhook = manage_webhooks.read_webhook(visit.ctx, visit.caller, webhook_id)
    found = deliveries.list_deliveries(
        visit.ctx, visit.caller, webhook_id, state=None, cursor=visit.query("cursor"), limit=PER_PAGE
    )
    here = f"/settings/webhooks/{webhook_id}"
    next_url = visit.url(here, cursor=found.next) if found.next else ""
    return render(visit, "deliveries.html", tab="webhooks", webhook=webhook, items=found.items, next_url=next_url)


def invite(visit: Visit) -> Response:
    """Make an invitation, whose link is shown once."""
    asked, faults = asked_of(CreateInvitation, {"role": visit.form.get("role")})
    if asked is None:
        return show(visit, faults=faults)
    return show(visit, invited=invitations.create_invitation(visit.ctx, visit.caller, asked))


def revoke_invitation(visit: Visit) -> Response:
    """End an invitation that is open."""
    invitations.revoke_invitation(visit.ctx, visit.caller, visit.path("invitation_id"))
    return see(visit.url("/settings", said="revoked"))


def set_notifications(visit: Visit) -> Response:
    """Set the mails that the person gets about the own jobs."""
    given = {"jobs": visit.form.get("jobs"), "daily_digest": bool(visit.form.get("daily_digest"))}
    asked, faults = asked_of(SetNotifications, given)
    if asked is None:
        return show(visit, faults=faults)
    verb = partial(own_notifications.set_notifications, visit.ctx, visit.caller, asked)
    return changed(visit, verb, show, "/settings", "saved")


def set_member(visit: Visit) -> Response:
    """Give a member another role."""
    asked, faults = asked_of(SetMember, {"role": visit.form.get("role")})
    if asked is None:
        return show(visit, faults=faults)
    verb = partial(members.set_member, visit.ctx, visit.caller, visit.project_id, visit.path("user_id"), asked)
    return changed(visit, verb, show, "/settings", "saved")


def remove_member(visit: Visit) -> Response:
    """Remove a member, whose keys and sessions end."""
    verb = partial(members.remove_member, visit.ctx, visit.caller, visit.project_id, visit.path("user_id"))
    return changed(visit, verb, show, "/settings", "removed")


def create_key(visit: Visit) -> Response:
    """Make a key, whose secret is shown once."""
    unread: dict[str, str] = {}
    days = whole_number(visit.form, "days", unread)
    given = {
        "name": visit.form.get("name") or "key",
        "scope": visit.form.get("scope"),
        "expires_in_s": None if days is None else days * DAY_S,
        "project_id": visit.project_id,
    }
    asked, faults = asked_of(CreateKey, given)
    if "expires_in_s" in faults:
        unread["days"] = f"Type a number from 1 to {MOST_KEY_TTL_S // DAY_S}, or leave the field empty."
    if asked is None or unread:
        return show_keys(visit, faults=faults | unread)
    try:
        created = keys.create_key(visit.ctx, visit.caller, asked)
    except InvalidInput as error:
        return show_keys(visit, faults={each.where: said_of(each) for each in error.faults})
    return show_keys(visit, created=created)


def revoke_key(visit: Visit) -> Response:
    """Revoke a key of the project."""
    verb = partial(keys.revoke_key, visit.ctx, visit.caller, visit.path("key_id"))
    return changed(visit, verb, show_keys, "/settings/keys", "revoked")


def set_secret(visit: Visit) -> Response:
    """Keep a value under a name. No page shows it again."""
    name = visit.form.get("secret_name")
    asked, faults = asked_of(SetSecret, {"value": visit.form.get("value")})
    if asked is None:
        return show_keys(visit, faults=faults | _of_secret(keep_secrets.name_faults(name)))
    try:
        keep_secrets.set_secret(visit.ctx, visit.caller, name, asked)
    except InvalidInput as error:
        return show_keys(visit, faults=_of_secret(error.faults))
    return see(visit.url("/settings/keys", said="saved"))


def _of_secret(faults: Sequence[Fault]) -> dict[str, str]:
    """Return faults by the fields of the form of secrets, which is on one page with that of keys."""
    return {"secret_name" if each.where == "name" else each.where: said_of(each) for each in faults}


def delete_secret(visit: Visit) -> Response:
    """Forget the value of a secret."""
    keep_secrets.delete_secret(visit.ctx, visit.caller, visit.path("name"))
    return see(visit.url("/settings/keys", said="removed"))


def create_webhook(visit: Visit) -> Response:
    """Make a webhook, whose signing secret is shown once."""
    asked, faults = asked_of(CreateWebhook, {"target": visit.form.get("target"), "format": visit.form.get("format")})
    if asked is None:
        return show_webhooks(visit, faults=faults)
    try:
        created = manage_webhooks.create_webhook(visit.ctx, visit.caller, asked)
    except InvalidInput as error:
        return show_webhooks(visit, faults={each.where: said_of(each) for each in error.faults})
    return show_webhooks(visit, created=created)


def delete_webhook(visit: Visit) -> Response:
    """Delete a webhook with its deliveries."""
    manage_webhooks.delete_webhook(visit.ctx, visit.caller, visit.path("webhook_id"))
    return see(visit.url("/settings/webhooks", said="removed"))


def replay(visit: Visit) -> Response:
    """Try every dead delivery again."""
    webhook_id = visit.path("webhook_id")
    deliveries.replay_deliveries(visit.ctx, visit.caller, webhook_id, ReplayDeliveries())
    return see(visit.url(f"/settings/webhooks/{webhook_id}", said="replayed"))


_HERE = "/projects/{project_id}/settings"
ROUTES = (
    page(_HERE, show),
    page(f"{_HERE}/keys", show_keys),
    page(f"{_HERE}/webhooks", show_webhooks),
    page(f"{_HERE}/webhooks/{{webhook_id}}", show_deliveries),
    action(f"{_HERE}/invitations", invite),
    action(f"{_HERE}/invitations/{{invitation_id}}/revoke", revoke_invitation),
    action(f"{_HERE}/notifications", set_notifications),
    action(f"{_HERE}/members/{{user_id}}", set_member),
    action(f"{_HERE}/members/{{user_id}}/remove", remove_member),
    action(f"{_HERE}/keys", create_key),
    action(f"{_HERE}/keys/{{key_id}}/revoke", revoke_key),
    action(f"{_HERE}/secrets", set_secret),
    action(f"{_HERE}/secrets/{{name}}/delete", delete_secret),
    action(f"{_HERE}/webhooks", create_webhook),
    action(f"{_HERE}/webhooks/{{webhook_id}}/delete", delete_webhook),
    action(f"{_HERE}/webhooks/{{webhook_id}}/replay", replay),
)
