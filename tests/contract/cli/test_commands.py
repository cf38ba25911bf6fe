"""Each command against a real server: what it prints, its JSON, its exit status, its next step."""

import json

import pytest
import typer
from tests.fixtures.served import a_dataset
from typer.testing import CliRunner

from giornata.cli.main import app
from giornata.cli.ui.output import EXIT_BAD_INPUT
from giornata.protocol.node.node_checks import NodeChecks
from giornata.protocol.node.work import Claim, NodeInfo

NODE = NodeInfo(node_id="node_12345678", machine_id="m-1", name="shed", pid=7, price_micro_usd_per_hour=200_000)


@pytest.fixture
def job(served, tmp_path):
    client = served.client(served.keys.admin)
    dataset = a_dataset(client, tmp_path)
    spec = {
        "model": "some/model",
        "dataset": dataset.id,
        "instance_prompt": "a photo of sks dog",
        "max_train_steps": 50,
    }
    return client.submit(spec, name="dog")


def claim(served):
    body = Claim(request_id="request-1", node=NODE, kinds=("train",)).model_dump(mode="json")
    return served.call("POST", "/v1/node/claim", served.keys.node, json=body).json()["lease"]


def test_empty_installation_lists_nothing(run):
    assert run("jobs", "--json").json == {"items": []}
    assert run("nodes", "--json").json == {"items": []}


def test_jobs_and_job_show_state_steps_and_attempts(run, served, job):
    claim(served)
    listed = run("jobs", "--state", "running", "--json").json["items"]
    assert [each["id"] for each in listed] == [job.id]
    shown = run("job", job.id)
    assert "running" in shown.output and "0/50" in shown.output and "shed" in shown.output
    one = run("job", job.id, "--json").json
    assert (one["state"], one["step"], one["attempts"][0]["number"]) == ("running", 0, 1)


def test_jobs_are_filtered_by_label(run, job):
    assert run("jobs", "--label", "color=red", "--json").json["items"] == []


def test_jobs_are_searched_for_a_text_of_their_name(run, job):
    assert [each["id"] for each in run("jobs", "--search", job.name[1:].upper(), "--json").json["items"]] == [job.id]
    assert run("jobs", "--search", "no such text", "--json").json["items"] == []


def test_jobs_are_filtered_by_kind(run, job):
    assert [each["id"] for each in run("jobs", "--kind", job.kind, "--json").json["items"]] == [job.id]
    assert run("jobs", "--kind", "sweep", "--json").json["items"] == []


BEFORE_A_SERVER = [
    (("jobs", "--label", "red", "--label", "=x"), {"--label"}),
    (("budget", "job_1", "much"), {"USD"}),
    (("project", "budget", "acme", "much"), {"USD"}),
    (("project", "create", "Acme!", "--name", ""), {"ID", "--name"}),
    (("key", "create", "--name", ""), {"--name"}),
    (("key", "create", "--scope", "node", "--max-price", "much"), {"--max-price"}),
    (("key", "create", "--scope", "node", "--max-price", "100001"), {"--max-price"}),
    (("machines", "quarantine", "m-1", "--reason", ""), {"--reason"}),
    (("secrets", "set", "HUB"), {"standard input"}),
    (("download", "job_1", "-o", __file__, "--format", "kohya"), {"--output", "--format"}),
    (("download", "job_1@500", "-o", __file__, "--checkpoint", "400"), {"--output", "--checkpoint"}),
]


@pytest.mark.parametrize(("command", "where"), BEFORE_A_SERVER, ids=[each[0] for each, _ in BEFORE_A_SERVER])
def test_invalid_arguments_are_refused_before_server_is_looked_up(tmp_path, command, where):
    done = CliRunner().invoke(app, ["--data", str(tmp_path), *command, "--json"], input="short")
    assert done.exit_code == EXIT_BAD_INPUT
    assert {fault["where"] for fault in json.loads(done.stdout)["error"]["faults"]} == where


def test_nodes_show_what_they_are_at(run, served, job):
    claim(served)
    node = run("nodes", "--json").json["items"][0]
    assert (node["machine_id"], node["state"], node["job_ids"], node["pid"]) == ("m-1", "busy", [job.id], 7)


def test_nodes_show_what_they_found_out_about_themselves(run, served):
    for number, lacking in enumerate([(), ("download goes at 0.50 MiB/s; the fleet asks for 5.00",)]):
        node = NODE.model_copy(update={"node_id": f"node_0000000{number}", "machine_id": f"m-{number}"})
        body = NodeChecks(node=node, shortcomings=lacking, leaving=bool(lacking)).model_dump(mode="json")
        served.call("POST", "/v1/node/checks", served.keys.node, json=body)
    shown = run("nodes", "--json").json["items"]
    assert sorted(each["checks"]["leaving"] for each in shown) == [False, True]
    printed = run("nodes").output
    assert "fit" in printed
    assert "0.50 MiB/s" in printed


def test_events_command_prints_sentences_and_json_event_types(run, served, job):
    claim(served)
    lines = run("events", job.id).output.splitlines()
    assert "submitted" in lines[0]
    assert "#1" in lines[1] and "taken by shed, from step 0" in lines[1]
    assert [each["type"] for each in run("events", job.id, "--json").json["items"]] == [
        "job.submitted",
        "attempt.started",
    ]


def test_a_job_that_its_only_machine_failed_says_when_it_is_tried_next_and_retry_tries_it_now(run, served, job):
    lease = claim(served)
    report = {"reason": "crashed", "message": "it died"}
    served.call("POST", f"/v1/node/attempts/{lease['attempt_id']}/fail", lease["token"], json=report)
    shown = run("job", job.id).output
    assert "every connected node (1) has failed this job before; it goes back to one of them at " in shown
    assert "next try    in " in shown
    assert run("job", job.id, "--json").json["next_try_at"] is not None
    assert f"{job.id} is in the queue, and every machine may take it now" in run("retry", job.id).output
    assert run("retry", job.id, "--json").json["id"] == job.id
    after = run("job", job.id, "--json").json
    assert (after["next_try_at"], after["waiting_because"]) == (None, "waiting for its turn, position 1 in the queue")
    assert "may go back to m-1: the job's owner asked for another try" in run("events", job.id).output


def test_cancel_then_retry_makes_a_new_job(run, job):
    canceled = run("cancel", job.id, "--json")
    assert canceled.json["state"] == "canceled"
    again = run("retry", job.id, "--json").json
    assert again["retry_of"] == job.id and again["id"] != job.id
    assert again["spec"]["seed"] == canceled.json["spec"]["seed"]


def test_an_unknown_job_says_what_to_do_next(run, served):
    done = run("job", "job_nowhere")
    assert done.status == 1
    assert f"giornata --url {served.url}" in done.errors
    assert done.errors.rstrip().endswith(" jobs")
    assert run("job", "job_nowhere", "--json").json["error"]["code"] == "not-found"


def test_a_job_without_results_has_nothing_to_download(run, job, tmp_path):
    done = run("download", job.id, "-o", str(tmp_path / "out"))
    assert done.status == 1
    assert "no results yet" in done.errors


def test_keys_are_shown_once_listed_and_revoked(run):
    made = run("key", "create", "--scope", "member", "--name", "laptop", "--json").json
    assert run("jobs", key=made["secret"]).status == 0
    listed = run("key", "list")
    assert made["prefix"] in listed.output and made["secret"] not in listed.output
    assert run("key", "revoke", made["id"]).status == 0
    refused = run("jobs", key=made["secret"])
    assert refused.status == 1
    assert "GIORNATA_API_KEY" in refused.errors


def test_a_nodes_key_may_have_a_highest_price_and_a_fleet(run):
    made = run("key", "create", "--scope", "node", "--max-price", "0.50", "--fleet", "gpu", "--json").json
    assert (made["max_price_micro_usd_per_hour"], made["fleet"]) == (500_000, "gpu")
    assert "--fleet gpu" in run("key", "create", "--scope", "node", "--fleet", "gpu").output
    refused = run("key", "create", "--scope", "member", "--max-price", "1")
    assert refused.status != 0
    assert "applies only to keys of scope node" in refused.errors


def test_the_operator_releases_a_projects_machine_by_the_name_that_is_shown(run):
    done = run("machines", "release", "desk-1@atelier")
    assert done.status == 1
    assert "nothing is held against a machine desk-1@atelier" in done.errors


def test_projects_keep_to_themselves(run, served, job):
    assert run("project", "create", "atelier").status == 0
    key = run("key", "create", "--project", "atelier", "--scope", "admin", "--json").json["secret"]
    assert run("jobs", "--json", key=key).json == {"items": []}
    assert run("job", job.id, key=key).status == 1
    assert {each["id"] for each in run("project", "list", "--json").json["items"]} >= {"default", "atelier", "other"}


def test_every_command_can_speak_json_and_explains_itself():
    root = typer.main.get_command(app)
    leaves = [
        (name, leaf)
        for name, command in root.commands.items()
        for leaf in (getattr(command, "commands", None) or {name: command}).values()
    ]
    assert len(leaves) > 15
    for name, leaf in leaves:
        assert "--json" in {option for parameter in leaf.params for option in parameter.opts}, name
        assert leaf.help, name


def test_secrets_come_from_standard_input_and_are_never_shown(run, served):
    value = "hf_NobodyMayEverReadThis"
    kept = run("secrets", "set", "HUB", typed=f"{value}\n")
    assert kept.status == 0 and "hub_token_secret=HUB" in kept.output
    listed = run("secrets", "list", "--json")
    assert [each["name"] for each in listed.json["items"]] == ["HUB"]
    assert value not in kept.output + kept.errors + listed.output
    refused = run("secrets", "set", "HUB", typed="two words\n")
    assert refused.status == 2 and "two words" not in refused.output + refused.errors
    assert run("secrets", "set", "HUB", typed="\n").status == 2
    assert run("secrets", "delete", "HUB").status == 0
    assert run("secrets", "list", "--json").json == {"items": []}
    assert run("secrets", "delete", "HUB").status != 0
