"""`giornata machines` against a real server: the table, its JSON, quarantine and release."""

import pytest

from giornata.domain.errors import Forbidden, NotFound
from giornata.protocol.node.work import Claim, NodeInfo

NODE = NodeInfo(node_id="node_12345678", machine_id="m-1", name="shed")


def claim(served, request_id):
    body = Claim(request_id=request_id, node=NODE, kinds=("x-own",)).model_dump(mode="json")
    return served.call("POST", "/v1/node/claim", served.keys.node, json=body).json()


def broken(served, number):
    served.client(served.keys.admin).submit({}, kind="x-own")
    lease = claim(served, f"request-{number}")["lease"]
    report = {"reason": "node_disk", "message": "full"}
    served.call("POST", f"/v1/node/attempts/{lease['attempt_id']}/fail", lease["token"], json=report)


@pytest.fixture
def machine(served):
    """Two failures of a new machine."""
    broken(served, 1)
    broken(served, 2)


def test_machine_is_unknown_before_its_first_report(run):
    assert run("machines", "--json").json == {"items": []}


def test_the_table_says_who_is_out_and_why(run, machine):
    header, line = run("machines").output.splitlines()
    assert header.split() == ["machine", "kind", "state", "since", "strikes", "quota", "why"]
    assert line.split()[:3] == ["m-1", "x-own", "quarantined"]
    assert line.split("ago")[1].split() == ["2.0", "4/h", "2.0", "strikes:", "2", "×", "node_disk"]
    (item,) = run("machines", "--state", "quarantined", "--json").json["items"]
    assert [each["reason"] for each in item["failures"]] == ["node_disk", "node_disk"]
    assert item["until"] > item["since"]
    assert run("machines", "--state", "ok", "--json").json == {"items": []}


def test_a_machine_is_released_and_quarantined_by_hand(run, served, machine):
    served.client(served.keys.admin).submit({}, kind="x-own")
    assert claim(served, "request-8")["reason"] == "quarantined"
    assert "gets jobs again" in run("machines", "release", "m-1").output
    out = run("machines", "quarantine", "m-1", "--reason", "smells of smoke")
    assert "gets no more jobs" in out.output
    refused = claim(served, "request-9")
    assert (refused["reason"], refused["detail"]) == (
        "quarantined",
        "this machine is quarantined (smells of smoke)",
    )
    run("machines", "release", "m-1")
    assert claim(served, "request-10")["lease"] is not None


def test_release_gives_a_machine_the_jobs_again_that_it_failed(run, served):
    broken(served, 1)
    assert claim(served, "request-2")["reason"] == "banned"
    run("machines", "release", "m-1")
    assert claim(served, "request-3")["lease"] is not None


def test_release_or_quarantine_of_unknown_machine_is_not_found(served):
    client = served.client(served.keys.admin)
    for verb in (client.release_machine, client.quarantine_machine):
        with pytest.raises(NotFound):
            verb("m-9")


def test_machines_are_forbidden_for_member_key(served):
    client = served.client(served.keys.member)
    with pytest.raises(Forbidden):
        list(client.machines())
    for verb in (client.release_machine, client.quarantine_machine):
        with pytest.raises(Forbidden):
            verb("m-1")


@pytest.mark.parametrize("kind", ["canary", "validate"])
def test_submit_of_canary_or_validate_job_is_refused_even_for_admin(served, kind):
    refused = served.call("POST", "/v1/jobs", served.keys.admin, json={"kind": kind, "spec": {}})
    assert refused.status_code == 400
    assert "platform's own kind" in refused.text


def test_pages_of_machines_hang_together(served):
    for number, reason in enumerate(("node_disk", "node_driver", "node_vram")):
        served.client(served.keys.admin).submit({}, kind="x-own")
        node = NODE.model_copy(update={"node_id": f"node_0000000{number}", "machine_id": f"m-{number}"})
        body = Claim(request_id=f"request-{number}", node=node, kinds=("x-own",)).model_dump(mode="json")
        lease = served.call("POST", "/v1/node/claim", served.keys.node, json=body).json()["lease"]
        report = {"reason": reason, "message": "broken"}
        served.call("POST", f"/v1/node/attempts/{lease['attempt_id']}/fail", lease["token"], json=report)
    first = served.call("GET", "/v1/machines?limit=2", served.keys.admin).json()
    second = served.call("GET", f"/v1/machines?limit=2&cursor={first['next']}", served.keys.admin).json()
    seen = [each["machine_id"] for each in [*first["items"], *second["items"]]]
    assert sorted(seen) == ["m-0", "m-1", "m-2"]
    assert second["next"] is None


def test_metrics_count_machines_by_state(served, machine):
    text = served.call("GET", "/metrics", served.keys.admin).text
    for line in ('giornata_machines{state="quarantined"} 1.0', "giornata_quarantines_total 1.0"):
        assert line in text
