"""The commands of `giornata webhook` against a real server."""

from tests.fixtures.webhooks import URL, deliver

from giornata.cli.ui.output import EXIT_BAD_INPUT


def test_webhook_is_made_tested_looked_at_and_deleted(run, served):
    made = run("webhook", "create", URL, "--event", "job.*", "--event", "budget.warning", "--json").json
    assert made["secret"].startswith("whsec_") and made["events"] == ["job.*", "budget.warning"]
    webhook_id = made["id"]
    listed = run("webhook", "list")
    assert webhook_id in listed.output and URL in listed.output and "enabled" in listed.output
    assert run("webhook", "test", webhook_id, "--json").json["type"] == "webhook.test"
    deliver(served.ctx)
    shown = run("webhook", "deliveries", webhook_id, "--state", "delivered")
    assert "webhook.test" in shown.output
    (delivery,) = run("webhook", "deliveries", webhook_id, "--json").json["items"]
    assert run("webhook", "replay", webhook_id, str(delivery["id"]), "--json").json == {"replayed": 1}
    assert run("webhook", "replay", webhook_id, "--json").json == {"replayed": 0}
    assert run("webhook", "rotate", webhook_id, "--overlap", "0", "--json").json["secret"] != made["secret"]
    changed = run("webhook", "change", webhook_id, "--disable", "--event", "*", "--json").json
    assert (changed["enabled"], changed["events"]) == (False, ["*"])
    assert run("webhook", "delete", webhook_id, "--json").json == {"id": webhook_id, "deleted": True}
    assert run("webhook", "list", "--json").json == {"items": []}


def test_secret_is_shown_when_it_is_made(run):
    assert "secret: whsec_" in run("webhook", "create", URL).output


def test_faults_are_told_by_their_options(run):
    refused = run("webhook", "create", "x", "--event", "job.done", "--job", "1")
    assert refused.status == EXIT_BAD_INPUT
    assert all(option in refused.errors for option in ("TARGET", "--event", "--job"))
    refused = run("webhook", "create", URL, "--daily-digest")
    assert refused.status == EXIT_BAD_INPUT and "--daily-digest" in refused.errors
