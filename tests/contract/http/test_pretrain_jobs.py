"""Jobs of kind `pretrain` over HTTP."""

import json

from tests.fixtures.served import Served

from giornata.pretrain.recipes import sdxl_tiny


def job(**changes: object) -> dict[str, object]:
    config = json.loads(json.dumps(sdxl_tiny("s3://bucket/run").to_json())) | changes
    return {"kind": "pretrain", "spec": {"config": config}}


def test_the_operator_submits_and_sees_its_steps(served: Served) -> None:
    response = served.call("POST", "/v1/jobs", served.keys.admin, json=job())
    assert response.status_code == 201
    assert response.json()["total_steps"] == 32
    assert response.json()["spec"]["config"]["phases"][1]["resolution"] == 64


def test_member_key_cannot_submit_or_estimate_pretrain_job(served: Served) -> None:
    response = served.call("POST", "/v1/jobs", served.keys.member, json=job())
    assert (response.status_code, response.json()["code"]) == (403, "forbidden")
    assert served.call("POST", "/v1/jobs:estimate", served.keys.member, json=job()).status_code == 403


def test_a_folder_that_every_machine_would_look_for_elsewhere_is_refused(served: Served) -> None:
    relative = job(storage="work", data={"shards": "~/shards"}, encode={"latents": "work/latents"})
    faults = served.call("POST", "/v1/jobs", served.keys.admin, json=relative).json()["faults"]
    places = ("storage", "data.shards", "encode.latents")
    assert {fault["where"] for fault in faults} == {f"spec.config.{place}" for place in places}
    assert "s3://bucket/path" in faults[0]["hint"]
    whole = job(storage="/work", data={"shards": "/shards"})
    assert served.call("POST", "/v1/jobs", served.keys.admin, json=whole).status_code == 201


def test_faults_name_their_fields(served: Served) -> None:
    wrong = job(seed="x", phases=[{"name": "a", "resolution": 64, "samples": "many"}])
    faults = served.call("POST", "/v1/jobs", served.keys.admin, json=wrong).json()["faults"]
    assert {fault["where"] for fault in faults} == {"spec.config.seed", "spec.config.phases.0.samples"}
    together = job(encode={"mode": "offline", "store_text": False})
    (fault,) = served.call("POST", "/v1/jobs", served.keys.admin, json=together).json()["faults"]
    assert (fault["where"], fault["hint"].split(",")[0]) == ("spec.config.encode.store_text", "leave it out")
    contradictory = job(phases=[{"name": "a", "resolution": 65, "samples": 0}])
    faults = served.call("POST", "/v1/jobs", served.keys.admin, json=contradictory).json()["faults"]
    assert {fault["where"] for fault in faults} == {"spec.config.phases.0.resolution", "spec.config.phases.0.samples"}
