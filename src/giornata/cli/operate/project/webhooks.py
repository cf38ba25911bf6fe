"""The commands of `giornata webhook`: create, list, change, rotate, test, deliveries, replay and delete."""

from itertools import islice
from typing import Annotated

import typer

from giornata.cli.options import JsonFlag, check_message, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.ui.output import Output, reporting
from giornata.cli.ui.text import ago
from giornata.domain.accounts.notifications import DeliveryState
from giornata.protocol.project.webhook_endpoints import (
    DAY_S,
    ChangeWebhook,
    CreateWebhook,
    RotateWebhook,
    SecretOfWebhook,
    Webhook,
    WebhookDelivery,
    WebhookFormat,
)

SEE = ("webhook", "list")
MOST_SHOWN = 100
WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK", help="Id of the webhook.", show_default=False)]
Events = Annotated[
    list[str] | None,
    typer.Option("--event", metavar="EVENT", help="Event, group such as job.*, or * for all. May be repeated."),
]


def register(app: typer.Typer) -> None:
    """Add the command group `webhook` to `app`."""
    webhook = typer.Typer(no_args_is_help=True, help="Send events to a URL, to Slack, to Discord or by mail.")
    webhook.command("create")(create)
    webhook.command("list")(list_webhooks)
    webhook.command("change")(change)
    webhook.command("rotate")(rotate)
    webhook.command("test")(send_test)
    webhook.command("deliveries")(deliveries)
    webhook.command("replay")(replay)
    webhook.command("delete")(delete)
    app.add_typer(webhook, name="webhook")


def create(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="URL (https) or mail address that gets the events.", show_default=False
        ),
    ],
    format: Annotated[WebhookFormat, typer.Option(help="Format of the messages.")] = WebhookFormat.STANDARD,
    event: Events = None,
    job: Annotated[
        str | None,
        typer.Option(metavar="JOB", help="Only events of this job. Default: all jobs.", show_default=False),
    ] = None,
    daily_digest: Annotated[
        bool, typer.Option("--daily-digest", help="One message a day, at 07:00 UTC. Not for the format standard.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Send events of the project to a target from now on."""
    with reporting(as_json, see=SEE) as out:
        chosen = {"events": ("--event", event)} if event else {}
        given = {
            "target": ("TARGET", target),
            "format": ("--format", format),
            "job_id": ("--job", job),
            "daily_digest": ("--daily-digest", daily_digest),
            **chosen,
        }
        check_message(CreateWebhook, **given)
        body = {field: value for field, (_, value) in given.items()}
        with connect(settings_of(context)) as client:
            created = client.create_webhook(CreateWebhook.model_validate(body))
            out.say(f"{created.id} sends {', '.join(created.events)} to {created.target}")
            _say_secret(out, created)
            out.hint(f"  test it  {giornata('webhook', 'test', created.id)}")
            out.result(created)


def _say_secret(out: Output, webhook: SecretOfWebhook) -> None:
    if webhook.secret is not None:
        out.say(f"secret: {webhook.secret}")
        out.hint("  The secret is not shown again. The receiver verifies signatures with it.")


def list_webhooks(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List the webhooks of the project, newest first."""
    with reporting(as_json, see=SEE) as out, connect(settings_of(context)) as client:
        webhooks = list(client.webhooks())
        rows = [_row(each) for each in webhooks]
        if rows or not out.live:
            headers = ("webhook", "format", "target", "events", "waiting", "dead", "state", "by")
            out.table(headers, rows, right=(4, 5), spare=(7,))
        else:
            out.hint(f"No webhooks. Make one with: {giornata('webhook', 'create', 'URL')}")
        out.result({"items": [each.model_dump(mode="json") for each in webhooks]})


def _row(each: Webhook) -> tuple[str, ...]:
    events = ", ".join(each.events)
    waiting, dead, maker = str(each.waiting), str(each.dead), each.created_by or ""
    return each.id, each.format, each.target, events, waiting, dead, _state(each), maker


def _state(webhook: Webhook) -> str:
    if webhook.enabled:
        return "daily digest" if webhook.daily_digest else "enabled"
    return f"disabled: {webhook.disabled_because}" if webhook.disabled_because else "disabled"


def change(
    context: typer.Context,
    webhook_id: WebhookId,
    enable: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Send deliveries, or hold them.", show_default=False)
    ] = None,
    event: Events = None,
    as_json: JsonFlag = False,
) -> None:
    """Enable or disable a webhook, or change its events."""
    with reporting(as_json, see=SEE) as out:
        options = {"enabled": ("--enable", enable), "events": ("--event", event)}
        given = {field: each for field, each in options.items() if each[1] is not None}
        check_message(ChangeWebhook, **given)
        with connect(settings_of(context)) as client:
            body = ChangeWebhook.model_validate({field: value for field, (_, value) in given.items()})
            changed = client.change_webhook(webhook_id, body)
            out.say(f"{changed.id} is {_state(changed)}, and sends {', '.join(changed.events)}")
            out.result(changed)


def rotate(
    context: typer.Context,
    webhook_id: WebhookId,
    overlap: Annotated[
        int, typer.Option(metavar="SECONDS", help="Seconds for which the old secret signs as well.")
    ] = DAY_S,
    as_json: JsonFlag = False,
) -> None:
    """Give a webhook a new signing secret."""
    with reporting(as_json, see=SEE) as out:
        check_message(RotateWebhook, overlap_s=("--overlap", overlap))
        with connect(settings_of(context)) as client:
            rotated = client.rotate_webhook(webhook_id, RotateWebhook(overlap_s=overlap))
            out.say(f"{rotated.id} has a new secret")
            _say_secret(out, rotated)
            out.result(rotated)


def send_test(context: typer.Context, webhook_id: WebhookId, as_json: JsonFlag = False) -> None:
    """Send the event webhook.test to a webhook."""
    with reporting(as_json, see=SEE) as out, connect(settings_of(context)) as client:
        delivery = client.test_webhook(webhook_id)
        out.say(f"delivery {delivery.id} of {delivery.type} is on its way")
        out.hint(f"  what came of it  {giornata('webhook', 'deliveries', webhook_id)}")
        out.result(delivery)


def deliveries(
    context: typer.Context,
    webhook_id: WebhookId,
    state: Annotated[
        DeliveryState | None, typer.Option(help="Only deliveries in this state.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of deliveries.")] = MOST_SHOWN,
    as_json: JsonFlag = False,
) -> None:
    """List the deliveries of a webhook, newest first."""
    with reporting(as_json, see=SEE) as out, connect(settings_of(context)) as client:
        found = list(islice(client.webhook_deliveries(webhook_id, state=state), limit))
        rows = [_delivery_row(each) for each in found]
        if rows or not out.live:
            out.table(("delivery", "event", "job", "state", "tries", "made", "error"), rows, right=(0, 4), prose=(6,))
        else:
            out.hint(f"No deliveries. Send a test with: {giornata('webhook', 'test', webhook_id)}")
        out.result({"items": [each.model_dump(mode="json") for each in found]})


def _delivery_row(each: WebhookDelivery) -> tuple[str, ...]:
    job, error = each.job_id or "", each.error if each.state is not DeliveryState.DELIVERED else ""
    return str(each.id), each.type, job, each.state, str(each.tries), ago(each.created_at), error


def replay(
    context: typer.Context,
    webhook_id: WebhookId,
    delivery: Annotated[
        list[int] | None,
        typer.Argument(
            metavar="[DELIVERY]...", help="Ids of deliveries. Default: all dead ones.", show_default=False
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Send deliveries of a webhook again."""
    with reporting(as_json, see=SEE) as out, connect(settings_of(context)) as client:
        count = client.replay_deliveries(webhook_id, delivery or None)
        out.say(f"{count} {'delivery is' if count == 1 else 'deliveries are'} sent again")
        out.result({"replayed": count})


def delete(context: typer.Context, webhook_id: WebhookId, as_json: JsonFlag = False) -> None:
    """Delete a webhook and its deliveries."""
    with reporting(as_json, see=SEE) as out, connect(settings_of(context)) as client:
        client.delete_webhook(webhook_id)
        out.say(f"{webhook_id} is deleted")
        out.result({"id": webhook_id, "deleted": True})
