"""Webhooks of a standalone run."""

import random
import time

import httpx
from standardwebhooks import Webhook
from tests.unit.standalone.conftest import NOW

from giornata.protocol.events import EventType
from giornata.standalone.webhooks import TRIES, WebhookConfig, WebhookSender

SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
AT_ONCE_S = 20.0


class AnsweringReceiver:
    """Answers with the statuses given, then 200, and keeps what came."""

    def __init__(self, *statuses):
        self.statuses, self.requests = list(statuses), []

    def __call__(self, request):
        self.requests.append(request)
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 0:
            raise httpx.ConnectError("nobody listens")
        return httpx.Response(status)


def sender_to(receiver, said, now_s):
    http = httpx.Client(transport=httpx.MockTransport(receiver))
    config = WebhookConfig(url="https://example.test/hook", secret=SECRET, http=http, now_s=lambda: now_s)
    return WebhookSender(config, job_id="job_1", say=said.append, rng=random.Random(0), sleep=lambda _: None)


def notify(sender, step=20):
    sender.notify(EventType.CHECKPOINT_COMMITTED, at=NOW, data={"step": step}, about=str(step))


def test_a_delivery_is_signed_as_the_reference_library_checks_it():
    receiver = AnsweringReceiver()
    sender = sender_to(receiver, [], time.time())
    notify(sender)
    sender.close(AT_ONCE_S)
    (got,) = receiver.requests
    body = Webhook(SECRET).verify(got.content, dict(got.headers))
    assert (body["type"], body["job_id"], body["data"]) == ("checkpoint.committed", "job_1", {"step": 20})
    assert body["id"] == got.headers["webhook-id"]


def test_failed_webhook_is_resent_with_same_id_and_order_is_kept():
    receiver, said = AnsweringReceiver(500, 0, 200), []
    sender = sender_to(receiver, said, 0.0)
    notify(sender, 20)
    notify(sender, 40)
    sender.close(AT_ONCE_S)
    ids = [each.headers["webhook-id"] for each in receiver.requests]
    assert ids[0] == ids[1] == ids[2] != ids[3]
    assert (sender.delivered, sender.given_up, said) == (2, 0, [])


def test_an_event_has_the_same_id_when_another_process_tells_of_it():
    receivers = [AnsweringReceiver(), AnsweringReceiver()]
    for receiver in receivers:
        sender = sender_to(receiver, [], 0.0)
        notify(sender)
        sender.close(AT_ONCE_S)
    first, second = (receiver.requests[0] for receiver in receivers)
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.content == second.content


def test_a_receiver_that_stays_away_is_given_up_and_said():
    receiver, said = AnsweringReceiver(*[503] * TRIES), []
    sender = sender_to(receiver, said, 0.0)
    notify(sender)
    sender.close(AT_ONCE_S)
    assert (len(receiver.requests), sender.given_up) == (TRIES, 1)
    assert "503" in said[0]


def test_a_receiver_that_says_gone_is_not_asked_again():
    receiver, said = AnsweringReceiver(410), []
    sender = sender_to(receiver, said, 0.0)
    notify(sender)
    sender.close(AT_ONCE_S)
    assert len(receiver.requests) == 1 and len(said) == 1


def test_webhook_sender_without_receiver_sends_nothing():
    sender = WebhookSender(None, job_id="job_1", say=print, rng=random.Random(0))
    notify(sender)
    sender.close(AT_ONCE_S)
    assert sender.delivered == 0
