"""Messages of deliveries for people and for programs."""

import json
from dataclasses import replace

from giornata.control.notifications.send_due import DISCORD_CHARACTERS, chosen, messages_of
from giornata.control.ports.user_queries.webhook_store import DeliveryRecord, DueChain, WebhookRecord
from giornata.domain.accounts.notifications import DeliveryState
from giornata.protocol.project.webhook_endpoints import WebhookFormat

WEBHOOK = WebhookRecord(
    id="wh_1",
    project_id="ann",
    job_id=None,
    format=WebhookFormat.STANDARD,
    events=["*"],
    target="",
    sealed="",
    daily_digest=False,
    enabled=True,
    disabled_because="",
    begins_after=0,
    old_secret_until_ms=None,
    created_at_ms=0,
)


def failed(number: int, error: str) -> DeliveryRecord:
    body = {
        "id": f"evt_{number}",
        "type": "job.failed",
        "job_id": "job_1",
        "at": "2026-11-23T10:00:00Z",
        "data": {"error": error, "faults": [], "budget": None},
    }
    return DeliveryRecord(
        id=number,
        webhook_id="wh_1",
        chain="job_1",
        event_id=f"evt_{number}",
        job_id="job_1",
        type="job.failed",
        body=json.dumps(body),
        due_at_ms=0,
        created_at_ms=0,
        state=DeliveryState.SENDING,
        tries=0,
        status=None,
        error="",
        ended_at_ms=None,
    )


def bodies(format: WebhookFormat, *errors: str, daily_digest: bool = False) -> list[str]:
    webhook = replace(WEBHOOK, format=format, daily_digest=daily_digest)
    return [each.body for each in messages_of(webhook, [failed(number, each) for number, each in enumerate(errors)])]


def test_program_gets_the_bytes_that_were_stored() -> None:
    assert bodies(WebhookFormat.STANDARD, "a", "b") == [failed(0, "a").body, failed(1, "b").body]


def test_slack_gets_text_in_which_nothing_has_a_meaning() -> None:
    (body,) = bodies(WebhookFormat.SLACK, "<!channel> a & b")
    assert json.loads(body) == {"text": "2026-11-23 10:00 job.failed job_1: error &lt;!channel&gt; a &amp; b"}


def test_discord_mentions_nobody_and_gets_no_more_than_it_takes() -> None:
    (body,) = bodies(WebhookFormat.DISCORD, *["@everyone " * 99] * 30, daily_digest=True)
    message = json.loads(body)
    assert message["allowed_mentions"] == {"parse": []}
    assert len(message["content"]) == DISCORD_CHARACTERS


def test_line_ends_of_a_job_make_no_further_lines() -> None:
    (text,) = bodies(WebhookFormat.MAIL, "one\r\n\r\ntwo")
    assert text == "2026-11-23 10:00 job.failed job_1: error one two\n"


def test_webhooks_that_fail_leave_half_of_the_room_to_the_others() -> None:
    due = [DueChain(webhook_id=f"bad{number}", chain="x", troubled=True) for number in range(100)]
    due += [DueChain(webhook_id="good", chain=f"c{number}", troubled=False) for number in range(9)]
    begun = chosen(due, {"good": 1}, most=4, room=20)
    assert [sum(each.troubled for each in begun), sum(not each.troubled for each in begun)] == [10, 3]
    assert chosen(due, {f"bad{number}": 1 for number in range(100)}, most=4, room=2) == due[100:102]
