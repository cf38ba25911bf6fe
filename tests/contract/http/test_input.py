"""What comes in wrong is refused whole, with a problem document that lists every fault."""

import json

import httpx
import pytest
from tests.contract.http.test_refusals import lease
from tests.fixtures.served import Served

from giornata.api.requests.body_limits import check_json_text
from giornata.domain.errors import InvalidInput

JOB = {"kind": "x-count", "spec": {"steps": 5}}


def faults(response: httpx.Response) -> dict[str, str]:
    assert response.status_code == 400, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["code"] == "invalid-input"
    assert body["retryable"] is False
    return {fault["where"]: fault["message"] for fault in body["faults"]}


def post(
    standing: Served, content: bytes | str, path: str = "/v1/jobs", kind: str = "application/json"
) -> httpx.Response:
    return standing.call("POST", path, standing.keys.member, content=content, headers={"Content-Type": kind})


def test_every_fault_at_once(standing: Served) -> None:
    body = {"kind": "No!", "priority": 1000, "deadline_s": 0, "color": "red"}
    found = faults(standing.call("POST", "/v1/jobs", standing.keys.member, json=body))
    assert set(found) == {"kind", "priority", "deadline_s", "spec", "color"}
    assert found["color"] == "there is no such field"


def test_faults_deep_in_a_list_say_where(standing: Served) -> None:
    files = [{"sha256": "0" * 64, "size_bytes": 3}, {"sha256": "zz", "size_bytes": 0}]
    found = faults(standing.call("POST", "/v1/uploads", standing.keys.member, json={"files": files}))
    assert set(found) == {"files.1.sha256", "files.1.size_bytes"}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe{}", b"[1, 2", b'{"kind": }', b"[" * 100_000, b"1" * 5000])
def test_request_body_of_invalid_json_is_refused(standing: Served, content: bytes) -> None:
    assert list(faults(post(standing, content))) in (["body"], ["request"], [])


def test_json_under_another_name(standing: Served) -> None:
    assert list(faults(post(standing, json.dumps(JOB), kind="text/plain"))) == ["body"]


@pytest.mark.parametrize(
    "value",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-1E+0400",
        "2" * 400 + ".0",
        '"a\\u0000b"',
        '"\\ud800"',
        '{"\\udfff": 1}',
    ],
)
def test_json_with_nan_overflow_nul_or_lone_surrogate_is_refused(standing: Served, value: str) -> None:
    assert list(faults(post(standing, f'{{"kind": "x-count", "spec": {{"a": [{value}]}}}}'))) == ["body"]


@pytest.mark.parametrize(
    "text", ["1e300", "2e-999", '"\\ud83d\\ude00"', '"NaN"', '"Infinity \\u00e9"', '"\\\\u0000"', '"\\\\ud800"']
)
def test_json_with_large_floats_or_escaped_look_alikes_of_bad_values_is_accepted(text: str) -> None:
    check_json_text(text.encode())
    with pytest.raises(InvalidInput):
        check_json_text(f"[{text}, NaN]".encode())


def test_numbers_that_no_column_holds(served: Served) -> None:
    mine = lease(served)
    attempt = f"/v1/node/attempts/{mine['attempt_id']}"
    sizes = {"sha256": "0" * 64, "size_bytes": 2**63}
    asked: dict[str, tuple[dict[str, object], set[str]]] = {
        "heartbeat": (
            {"step": 2**63, "total_steps": 2**63, "engine_pid": 2**31},
            {"step", "total_steps", "engine_pid"},
        ),
        "log": ({"first": 2**63, "lines": ["a"]}, {"first"}),
        "metrics": ({"points": [{"step": 1, "values": {}}, {"step": 2**63, "values": {}}]}, {"points.1.step"}),
        "checkpoints": ({"step": 2**63, **sizes}, {"step", "size_bytes"}),
        "artifacts": ({"name": "a", **sizes}, {"size_bytes"}),
        "complete": ({"step": 2**63}, {"step"}),
        "fail": ({"reason": "crashed", "message": "", "exit_code": 2**31, "step": 2**63}, {"exit_code", "step"}),
        "release": ({"step": 2**63}, {"step"}),
    }
    for route, (body, wrong) in asked.items():
        assert set(faults(served.call("POST", f"{attempt}/{route}", mine["token"], json=body))) == wrong, route


def test_a_body_that_is_too_large(standing: Served) -> None:
    for size_bytes in (2**20 + 1, 5 * 2**20):
        response = post(standing, b" " * size_bytes, "/v1/uploads")
        assert (response.status_code, response.json()["code"]) == (413, "too-large")
    assert faults(post(standing, b" " * 2**20, "/v1/uploads"))


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs:estimate", "/v1/generations"])
def test_an_order_of_pictures_may_be_longer_and_is_bounded_too(standing: Served, path: str) -> None:
    response = post(standing, b" " * (4 * 2**20 + 1), path)
    assert (response.status_code, response.json()["code"]) == (413, "too-large")
    assert faults(post(standing, b" " * 2 * 2**20, path))


def test_the_list_of_a_datasets_pictures_may_be_longer_and_is_bounded_too(standing: Served) -> None:
    response = post(standing, b" " * (16 * 2**20 + 1), "/v1/datasets")
    assert (response.status_code, response.json()["code"]) == (413, "too-large")
    assert faults(post(standing, b" " * 2 * 2**20, "/v1/datasets"))


def test_a_body_of_unknown_length_that_is_too_large(standing: Served) -> None:
    headers = {"Content-Type": "application/json"}
    chunks = (b" " * 65536 for _ in range(80))
    response = standing.call("POST", "/v1/jobs", standing.keys.member, content=chunks, headers=headers)
    assert (response.status_code, response.json()["code"]) == (413, "too-large")


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/v1/jobs?limit=0", "query.limit"),
        ("/v1/jobs?limit=100000", "query.limit"),
        ("/v1/jobs?state=lost", "query.state"),
        ("/v1/jobs?label=nocolon", "query.label"),
        ("/v1/jobs?label=:v", "query.label"),
        ("/v1/jobs?cursor=garbage!", "cursor"),
        ("/v1/jobs/job_x/events?after=-1", "query.after"),
        (f"/v1/jobs/job_x/events?after={2**63}", "query.after"),
        ("/v1/jobs?kind=%00", "path"),
        ("/v1/jobs/%00", "path"),
        ("/v1/blobs/a%0Ab", "path"),
        (f"/v1/jobs/{'j' * 65}", "path.job_id"),
        ("/v1/nodes?gone=perhaps", "query.gone"),
        ("/v1/pictures?since=0", "query.since"),
        ("/v1/costs?until=1764000000.5", "query.until"),
        ("/v1/costs/days?since=0", "query.since"),
    ],
)
def test_invalid_path_or_query_parameter_is_refused_with_its_location(
    standing: Served, path: str, where: str
) -> None:
    assert list(faults(standing.call("GET", path, standing.keys.member))) == [where]


@pytest.mark.parametrize("key", ["", "a b", "k" * 256])
def test_idempotency_keys_of_no_use(standing: Served, key: str) -> None:
    response = standing.call("POST", "/v1/jobs", standing.keys.member, json=JOB, headers={"Idempotency-Key": key})
    assert list(faults(response)) == ["header.Idempotency-Key"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "allow"),
    [
        ("GET", "/v1/nothing", 404, "not-found", None),
        ("GET", "/v1/jobs/", 404, "not-found", None),
        ("PATCH", "/v1/jobs", 405, "method-not-allowed", "GET, HEAD, POST"),
        ("PUT", "/v1/jobs/job_x", 405, "method-not-allowed", "DELETE, GET, HEAD, PATCH"),
        ("DELETE", "/v1/node/attempts/att_x/cache/a.b", 405, "method-not-allowed", "GET, HEAD, PUT"),
        ("PUT", "/v1/jobs:estimate", 405, "method-not-allowed", "POST"),
    ],
)
def test_unknown_route_gets_404_and_wrong_method_gets_405_with_allow_header(
    standing: Served, method: str, path: str, status: int, code: str, allow: str | None
) -> None:
    response = standing.call(method, path, standing.keys.member)
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers.get("allow") == allow
