"""What is sent is taken as it is written, all of it, and GET routes answer to HEAD."""

import httpx
import pytest
from pydantic import ValidationError
from tests.contract.http.test_input import faults
from tests.contract.http.test_refusals import lease
from tests.fixtures.served import Served, a_dataset

from giornata.protocol.jobs import SubmitJob
from giornata.protocol.specs import TrainSpec
from giornata.protocol.strict_json import check_as_written

JOB = {"kind": "x-count", "spec": {"steps": 5}}
TRAIN = {"model": "some/model", "instance_prompt": "sks", "max_train_steps": 10}


# ---- numbers


@pytest.mark.parametrize("value", ["1", True, False, "1.0", 1.5])
def test_priority_that_is_not_an_integer_is_refused(standing: Served, value: object) -> None:
    found = faults(standing.call("POST", "/v1/jobs", standing.keys.member, json={**JOB, "priority": value}))
    assert list(found) == ["priority"]


@pytest.mark.parametrize("value", [1, 1.0, -0.0])
def test_priority_that_is_a_whole_number_is_accepted(standing: Served, value: object) -> None:
    reply = standing.call("POST", "/v1/jobs", standing.keys.member, json={**JOB, "priority": value})
    assert (reply.status_code, reply.json()["priority"]) == (201, int(value))  # type: ignore[call-overload]


def test_all_faults_are_said_with_what_to_do(standing: Served) -> None:
    body = {"kind": "No!", "spec": {}, "priority": "1", "deadline_s": True, "color": "red"}
    reply = standing.call("POST", "/v1/jobs", standing.keys.member, json=body)
    assert set(faults(reply)) == {"kind", "priority", "deadline_s", "color"}
    hints = {fault["where"]: fault["hint"] for fault in reply.json()["faults"]}
    assert hints["priority"] == "send a whole number without quotes"


def test_numbers_of_a_spec_too(served: Served, tmp_path: object) -> None:
    dataset = a_dataset(served.client(), tmp_path).id  # type: ignore[arg-type]
    spec = {**TRAIN, "dataset": dataset, "rank": "8", "learning_rate": True, "center_crop": 1, "gamma": 2}
    found = faults(served.call("POST", "/v1/jobs", served.keys.member, json={"kind": "train", "spec": spec}))
    assert set(found) == {"spec.rank", "spec.learning_rate", "spec.center_crop", "spec.gamma"}
    good = {**TRAIN, "dataset": dataset, "rank": 8.0, "learning_rate": 1, "center_crop": True}
    reply = served.call("POST", "/v1/jobs", served.keys.member, json={"kind": "train", "spec": good})
    assert reply.status_code == 201, reply.text
    assert (reply.json()["spec"]["rank"], reply.json()["spec"]["learning_rate"]) == (8, 1.0)


def test_specs_of_ones_own_keep_what_they_hold(standing: Served) -> None:
    spec = {"a": "1", "b": True, "c": 1.0, "d": [{"e": None}]}
    reply = standing.call("POST", "/v1/jobs", standing.keys.member, json={"kind": "x-any", "spec": spec})
    assert reply.json()["spec"] == spec


def test_a_spec_that_is_nested_too_deeply_is_a_fault(standing: Served) -> None:
    spec: dict[str, object] = {}
    for _ in range(300):
        spec = {"a": spec}
    assert standing.call("POST", "/v1/jobs", standing.keys.member, json={**JOB, "spec": spec}).status_code == 400


def test_nodes_are_held_to_it_on_the_short_way_too(served: Served) -> None:
    mine = lease(served)
    beat = f"/v1/node/attempts/{mine['attempt_id']}/heartbeat"
    for step in ("1", True, 1.5):
        assert list(faults(served.call("POST", beat, mine["token"], json={"step": step}))) == ["step"]
    for step in (1, 2.0):
        assert served.call("POST", beat, mine["token"], json={"step": step}).status_code == 200


def test_a_spec_that_was_kept_is_as_written() -> None:
    kept = TrainSpec.model_validate({**TRAIN, "dataset": "ds_0", "report_to": ["wandb"]}).model_dump(mode="json")
    check_as_written(TrainSpec, kept)
    check_as_written(SubmitJob, SubmitJob(spec=kept).model_dump(mode="json"))
    with pytest.raises(ValidationError):
        check_as_written(TrainSpec, kept | {"rank": str(kept["rank"])})


# ---- parameters


@pytest.mark.parametrize(
    ("path", "where", "hint"),
    [
        ("/v1/jobs?limt=5", "query.limt", "did you mean limit?"),
        ("/v1/nodes?Gone=true", "query.Gone", "did you mean gone?"),
        ("/v1/keys?frobnicate", "query.frobnicate", "this route takes cursor, limit"),
        ("/v1/jobs/job_x?verbose=1", "query.verbose", "this route takes no parameters"),
        ("/healthz?full=1", "query.full", "this route takes no parameters"),
    ],
)
def test_unknown_query_parameter_is_refused_with_hint(standing: Served, path: str, where: str, hint: str) -> None:
    reply = standing.call("GET", path, standing.keys.member)
    assert list(faults(reply)) == [where]
    assert reply.json()["faults"][0]["hint"] == hint


def test_unknown_parameters_are_listed_with_all_that_is_wrong(standing: Served) -> None:
    found = faults(standing.call("GET", "/v1/jobs?limit=0&cursr=a&cursr=b&x=1", standing.keys.member))
    assert set(found) == {"query.limit", "query.cursr", "query.x"}
    found = faults(standing.call("POST", "/v1/jobs?dry=1", standing.keys.member, json={"kind": "No!"}))
    assert set(found) == {"query.dry", "kind", "spec"}


def test_every_route_refuses_them(served: Served) -> None:
    mine = lease(served)
    keys = served.keys
    for path, operations in served.http.get(f"{served.url}/openapi.json").json()["paths"].items():
        if path.startswith("/v1/blobs"):
            continue
        for method in operations:
            where = path.replace("{attempt_id}", mine["attempt_id"]).replace("{step}", "1")
            where = where.replace("{", "").replace("}", "")
            key = keys.admin if "attempts" not in path else mine["token"]
            reply = served.call(method.upper(), f"{where}?nonsense=1", key, json={} if method != "get" else None)
            if path == "/v1/images/generations":
                assert "query.nonsense" in reply.json()["error"]["message"]
            elif path in {"/v1/device/authorization", "/v1/device/token"}:
                assert "query.nonsense" in reply.json()["error_description"]
            else:
                assert "query.nonsense" in faults(reply), (method, path)


def test_missing_key_gets_401_before_query_parameters_are_checked(standing: Served) -> None:
    assert standing.call("GET", "/v1/jobs?limt=5", None).status_code == 401


def test_the_servers_own_mark_is_no_way_in(standing: Served) -> None:
    reply = standing.call("GET", "/v1/jobs", standing.keys.member, headers={"X-Giornata-Unknown-Query": "[]x"})
    assert list(faults(reply)) == ["header.x-giornata-unknown-query"]


# ---- HEAD


def same_but_for_the_body(standing: Served, path: str, key: str | None) -> httpx.Response:
    head, get = (standing.call(method, path, key) for method in ("HEAD", "GET"))
    assert (head.status_code, head.content) == (get.status_code, b""), path
    names = ("content-type", "content-length")
    assert [head.headers.get(name) for name in names] == [get.headers.get(name) for name in names], path
    return head


def test_head_works_wherever_get_does(served: Served) -> None:
    mine = lease(served)
    paths = served.http.get(f"{served.url}/openapi.json").json()["paths"]
    for path, operations in paths.items():
        if "get" not in operations or path in {"/metrics", "/v1/blobs/{key}", "/v1/costs"}:
            continue  # their bodies differ from one moment to the next
        key = served.keys.admin if "attempts" not in path else mine["token"]
        where = path.replace("{attempt_id}", mine["attempt_id"]).replace("{job_id}", mine["job_id"])
        same_but_for_the_body(served, where.replace("{", "").replace("}", ""), key)
    for path, key in (("/metrics", None), ("/v1/costs", served.keys.admin), ("/openapi.json", None)):
        assert served.call("HEAD", path, key).status_code == 200
    assert served.call("HEAD", "/v1/jobs:estimate", served.keys.member).status_code == 405


def test_head_of_a_stream_ends(served: Served) -> None:
    mine = lease(served)
    headers = {"Accept": "text/event-stream"}
    path = f"/v1/jobs/{mine['job_id']}/events"
    assert served.call("HEAD", path, served.keys.member, headers=headers).status_code == 200


def test_head_request_to_signed_url_returns_length_without_body(served: Served) -> None:
    url = served.ctx.blobs.sign_get(written(served), expires_in_s=60).url
    head = served.http.head(url)
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "5", b"")
    assert served.http.get(url).content == b"bytes"


def written(served: Served) -> str:
    served.ctx.blobs.write("other/a", [b"bytes"])
    return "other/a"
