"""Budgets on the command line and in the SDK, against a real server."""

from datetime import UTC, datetime

import pytest
from tests.fixtures.served import a_dataset

from giornata.cli.ui.output import EXIT_PAUSED
from giornata.domain.errors import OverBudget
from giornata.domain.jobs.job import JobState
from giornata.protocol.node.work import Claim, NodeInfo

DEAR = NodeInfo(node_id="node_12345678", machine_id="m-1", name="shed", price_micro_usd_per_hour=100_000_000)


@pytest.fixture
def client(served):
    return served.client(served.keys.admin)


@pytest.fixture
def spec(client, tmp_path):
    dataset = a_dataset(client, tmp_path)
    return {"model": "some/model", "dataset": dataset.id, "instance_prompt": "sks dog", "max_train_steps": 50}


def paused(served, client, spec):
    """A job that a dear node had for a moment."""
    job = client.submit(spec, name="dog", budget_micro_usd=1)
    body = Claim(request_id="request-1", node=DEAR, kinds=("train",)).model_dump(mode="json")
    lease = served.call("POST", "/v1/node/claim", served.keys.node, json=body).json()["lease"]
    assert lease["job_id"] == job.id
    for verb, order in (("heartbeat", "release"), ("release", None)):
        path = f"/v1/node/attempts/{lease['attempt_id']}/{verb}"
        reply = served.call("POST", path, lease["token"], json={})
        assert reply.is_success, reply.text
        assert reply.json().get("order") == order
    return client.get_job(job.id)


def test_a_paused_job_is_shown_with_what_to_do_and_nobody_waits_for_it(run, served, client, spec):
    job = paused(served, client, spec)
    assert client.wait(job.id, timeout_s=5).state is JobState.PAUSED
    for command in ("events", "logs"):
        ended = run(command, job.id, "--follow")
        assert ended.status == EXIT_PAUSED
        assert "is used up" in ended.output
    assert "of the job's $0.000001 are spent" in run("events", job.id).output
    assert "paused" in run("jobs").output
    refused = run("retry", job.id)
    assert (refused.status, "giornata budget" in refused.errors) == (1, True)


def test_a_job_goes_on_when_its_budget_is_raised(run, served, client, spec):
    job = paused(served, client, spec)
    assert "at most $5.00" in run("budget", job.id, "5").output
    assert client.get_job(job.id).state is JobState.QUEUED
    assert run("budget", job.id, "none", "--json").json["budget_micro_usd"] is None
    assert "no limit" in run("budget", job.id).output
    assert client.get_job(job.id).state is JobState.QUEUED


def test_a_projects_budget_is_set_shown_and_held_to(run, client, spec):
    assert "no limit" in run("project", "list").output
    assert "$2.00" in run("project", "budget", "default", "2.00").output
    client.submit(spec, budget_micro_usd=1_500_000)
    shown = {each["id"]: each for each in run("project", "list", "--json").json["items"]}
    assert (shown["default"]["budget_micro_usd"], shown["default"]["reserved_micro_usd"]) == (2_000_000, 1_500_000)
    assert "$1.50" in run("project", "list").output
    run("project", "budget", "default", "none")
    assert client.submit(spec, budget_micro_usd=1_500_000).budget_micro_usd == 1_500_000


@pytest.mark.parametrize("amount", ["much", "-1", "0.0000001", "nan", "1e99"])
def test_a_sum_that_is_none_is_refused_before_anything_is_sent(run, amount):
    refused = run("budget", "job_1", "--", amount)
    assert (refused.status, "USD" in refused.errors) == (2, True)


def test_the_service_names_a_bad_budget_with_everything_else(served):
    reply = served.call(
        "POST", "/v1/jobs", served.keys.member, json={"spec": {}, "budget_micro_usd": 0, "priority": 999}
    )
    assert reply.status_code == 400
    of_the_job, of_the_spec = {"budget_micro_usd", "priority"}, {"dataset", "pretrained_model_name_or_path"}
    assert {fault["where"].rsplit(".")[-1] for fault in reply.json()["faults"]} == of_the_job | of_the_spec


def test_a_projects_budget_per_month_is_set_shown_and_held_to(run, served, client, spec):
    month = f"{datetime.now(UTC):%Y-%m}"
    shown = run("budget", "--project", "default", "--monthly", "20")
    assert f"$20.00 a month, $0 spent in {month}" in shown.output
    assert run("budget", "--project", "default").output == shown.output
    assert run("project", "budget", "default", "50").output.splitlines()[0].startswith("default: $50.00")
    both = run("project", "budget", "default", "--json").json
    assert (both["budget_micro_usd"], both["monthly_budget_micro_usd"], both["month"]) == (
        50_000_000,
        20_000_000,
        month,
    )
    assert "$20.00" in run("project", "list").output
    assert "$20.00 a month" in run("costs").output
    with pytest.raises(OverBudget, match=month):
        client.submit(spec, budget_micro_usd=20_000_001)
    assert (
        run("budget", "--project", "default", "--monthly", "none", "--json").json["monthly_budget_micro_usd"] is None
    )
    assert client.submit(spec, budget_micro_usd=20_000_001).budget_micro_usd == 20_000_001


def test_a_job_that_waits_for_the_next_month_says_so(run, served, client, spec):
    run("budget", "--project", "default", "--monthly", "0.000001")
    with pytest.raises(OverBudget):
        client.submit(spec, budget_micro_usd=2)
    job = client.submit(spec, budget_micro_usd=1)
    body = Claim(request_id="request-1", node=DEAR, kinds=("train",)).model_dump(mode="json")
    lease = served.call("POST", "/v1/node/claim", served.keys.node, json=body).json()["lease"]
    client.set_job_budget(job.id, None)
    assert served.call("POST", f"/v1/node/attempts/{lease['attempt_id']}/heartbeat", lease["token"], json={})
    served.call("POST", f"/v1/node/attempts/{lease['attempt_id']}/release", lease["token"], json={})
    assert "for this month is used up; the job goes on by itself" in run("job", job.id).output
    assert f"for {datetime.now(UTC):%Y-%m} are spent" in run("events", job.id).output


WRONG_BUDGETS = [
    ((), {"ID"}),
    (("job_1", "--project", "default"), {"--project"}),
    (("job_1", "--monthly", "5"), {"--monthly"}),
    (("--project", "default", "--monthly", "much"), {"--monthly"}),
]


@pytest.mark.parametrize(("words", "where"), WRONG_BUDGETS)
def test_a_budget_of_nobody_or_of_two_is_refused_with_what_to_do(run, words, where):
    refused = run("budget", *words, "--json")
    assert refused.status == 2
    assert {fault["where"] for fault in refused.json["error"]["faults"]} == where


def test_an_unknown_project_and_an_empty_change_are_refused(run, served):
    assert "there is no project nowhere" in run("budget", "--project", "nowhere").errors
    empty = served.call("PUT", "/v1/projects/default/budget", served.keys.admin, json={})
    assert (empty.status_code, "monthly_budget_micro_usd" in empty.text) == (400, True)


def test_policy_for_unsafe_pictures_is_shown_and_set(run, client):
    assert "default: unsafe pictures: off" in run("project", "safety", "default").output
    assert run("project", "safety", "default", "flag", "--json").json["safety"] == "flag"
    assert {each.id: each.safety for each in client.projects()}["default"] == "flag"
    assert "there is no project art" in run("project", "safety", "art", "block").errors
    assert run("project", "safety", "default", "maybe").status == 2


def test_a_projects_limit_of_pictures_is_shown_set_and_lifted(run, client):
    assert "default: most pictures of a dataset: 1000" in run("project", "limits", "default").output
    assert run("project", "limits", "default", "--max-pictures", "5", "--json").json["max_pictures"] == 5
    assert {each.id: each.max_pictures for each in client.projects()}["default"] == 5
    assert run("project", "limits", "default", "--max-pictures", "default", "--json").json["max_pictures"] == 1000
    assert "there is no project art" in run("project", "limits", "art", "--max-pictures", "5").errors
    for wrong in ("0", "many", "20001"):
        refused = run("project", "limits", "default", "--max-pictures", wrong, "--json")
        assert [fault["where"] for fault in refused.json["error"]["faults"]] == ["--max-pictures"]


def test_costs_are_told_by_day_and_label_also_as_csv(run, served, client, spec):
    client.submit(spec, labels={"customer": "=1+1"})
    body = Claim(request_id="request-1", node=DEAR, kinds=("train",)).model_dump(mode="json")
    lease = served.call("POST", "/v1/node/claim", served.keys.node, json=body).json()["lease"]
    path = f"/v1/node/attempts/{lease['attempt_id']}"
    assert served.call("POST", f"{path}/heartbeat", lease["token"], json={}).is_success
    days = run("costs", "--by-day", "--label", "customer", "--json").json
    (line,) = days["items"]
    assert (line["value"], line["cost_micro_usd"] > 0) == ("=1+1", True)
    assert run("costs", "--by-day", "--json").json["items"][0]["cost_micro_usd"] >= line["cost_micro_usd"]
    header, first = run("costs", "--by-day", "--label", "customer", "--csv").output.splitlines()
    assert (header, first.split(",")[1]) == ("day,customer,cost_usd", "'=1+1")
    assert line["day"] in run("costs", "--by-day").output


def test_options_that_do_not_go_together_are_all_named(run):
    refused = run("costs", "--label", "customer", "--csv", "--json")
    assert refused.status == 2
    assert [each["where"] for each in refused.json["error"]["faults"]] == ["--label", "--csv", "--csv"]
