"""Webhooks over HTTP and in the SDK."""

import pytest
from tests.fixtures.notifier import KeptRuns, failing
from tests.fixtures.served import Served
from tests.fixtures.webhooks import URL, deliver

from giornata.client import Client
from giornata.control.notifications.send_due import send_due
from giornata.domain.errors import Conflict, Forbidden, InvalidInput, NotFound
from giornata.protocol.project.webhook_endpoints import ChangeWebhook, CreateWebhook, RotateWebhook, WebhookFormat


@pytest.fixture
def admin(served: Served) -> Client:
    return served.client(served.keys.admin)


def test_webhook_is_made_shown_changed_and_deleted(admin: Client) -> None:
    made = admin.create_webhook(CreateWebhook(target=URL + "?token=1", events=["job.failed", "checkpoint.*"]))
    assert made.secret is not None
    assert made.secret.startswith("whsec_")
    shown = admin.webhook(made.id)
    assert (shown.target, shown.format, shown.enabled) == (URL + "?…", "standard", True)
    assert admin.change_webhook(made.id, ChangeWebhook(events=["*"])).events == ["*"]
    assert not admin.change_webhook(made.id, ChangeWebhook(enabled=False)).enabled
    assert [each.id for each in admin.webhooks()] == [made.id]
    assert admin.delete_webhook(made.id).id == made.id
    with pytest.raises(NotFound):
        admin.webhook(made.id)


def test_url_of_slack_is_not_shown_and_has_no_secret(admin: Client) -> None:
    target = "https://hooks.slack.com/services/T0/B0/secret"
    made = admin.create_webhook(CreateWebhook(target=target, format=WebhookFormat.SLACK))
    assert (made.secret, made.target) == (None, "https://hooks.slack.com/…")
    with pytest.raises(Conflict):
        admin.rotate_webhook(made.id)


def test_secret_is_shown_once_and_a_new_one_after_a_rotation(admin: Client) -> None:
    made = admin.create_webhook(CreateWebhook(target=URL))
    rotated = admin.rotate_webhook(made.id, RotateWebhook(overlap_s=60))
    assert rotated.secret not in {None, made.secret}
    assert rotated.old_secret_until is not None
    assert "secret" not in admin.webhook(made.id).model_dump(exclude={"old_secret_until"})


def test_test_delivery_is_sent_listed_and_replayed(served: Served, admin: Client) -> None:
    made = admin.create_webhook(CreateWebhook(target=URL))
    notifier = served.ctx.notifier
    assert isinstance(notifier, KeptRuns)
    notifier.answer = failing(410, gone=True)
    delivery = admin.test_webhook(made.id)
    assert (delivery.type, delivery.state) == ("webhook.test", "pending")
    deliver(served.ctx)
    (dead,) = admin.webhook_deliveries(made.id, state="dead")
    assert (dead.id, dead.status, dead.error) == (delivery.id, 410, "the target answered 410")
    assert list(admin.webhook_deliveries(made.id, state="delivered")) == []
    for call in (admin.test_webhook, admin.replay_deliveries):
        with pytest.raises(Conflict, match="is disabled"):
            call(made.id)
    admin.change_webhook(made.id, ChangeWebhook(enabled=True))
    notifier.answer = KeptRuns().answer
    assert admin.replay_deliveries(made.id, [dead.id]) == 1
    send_due(served.ctx)
    assert [each.state for each in admin.webhook_deliveries(made.id)] == ["delivered"]


def test_webhooks_are_the_affair_of_the_projects_admins(served: Served, admin: Client) -> None:
    made = admin.create_webhook(CreateWebhook(target=URL))
    stranger, member = served.client(served.keys.other_admin), served.client(served.keys.member)
    assert list(stranger.webhooks()) == []
    calls = [
        lambda client: client.webhook(made.id),
        lambda client: client.change_webhook(made.id, ChangeWebhook(enabled=False)),
        lambda client: client.rotate_webhook(made.id),
        lambda client: client.test_webhook(made.id),
        lambda client: client.replay_deliveries(made.id),
        lambda client: list(client.webhook_deliveries(made.id)),
        lambda client: client.delete_webhook(made.id),
    ]
    for call in calls:
        with pytest.raises(NotFound):
            call(stranger)
        with pytest.raises(Forbidden):
            call(member)
    with pytest.raises(Forbidden):
        member.create_webhook(CreateWebhook(target=URL))


def test_project_has_no_more_webhooks_than_it_may(served: Served, admin: Client) -> None:
    for _ in range(served.ctx.policy.max_webhooks_per_project):
        admin.create_webhook(CreateWebhook(target=URL))
    with pytest.raises(Conflict, match="may have no more"):
        admin.create_webhook(CreateWebhook(target=URL))


def test_every_fault_comes_at_once(served: Served, admin: Client) -> None:
    body = {"target": "x", "events": ["job.done", "job.*"], "format": "pigeon", "more": 1}
    reply = served.call("POST", "/v1/webhooks", served.keys.admin, json=body)
    assert reply.status_code == 400
    assert {fault["where"] for fault in reply.json()["faults"]} == {"target", "events.0", "format", "more"}
    with pytest.raises(InvalidInput, match="there is no job"):
        admin.create_webhook(CreateWebhook(target=URL, job_id="job_1"))
    reply = served.call("POST", "/v1/webhooks", served.keys.admin, json={"target": URL, "daily_digest": True})
    assert [fault["where"] for fault in reply.json()["faults"]] == ["daily_digest"]
