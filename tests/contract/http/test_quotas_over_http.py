"""Quotas over HTTP: what a refusal says, and requests a second."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.served import Served, serving


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as found:
        yield found


def limit(served: Served, **limits: object) -> None:
    reply = served.call("PUT", "/v1/projects/default/quotas", served.keys.admin, json=limits)
    assert reply.status_code == 200, reply.text


def test_refusal_is_a_problem_with_the_limit_its_use_and_all_faults(served: Served) -> None:
    limit(served, max_queued_jobs=0, max_priority=5)
    body = {"kind": "x-count", "spec": {"steps": 5}, "priority": 9}
    reply = served.call("POST", "/v1/jobs", served.keys.member, json=body)
    assert (reply.status_code, reply.headers["content-type"]) == (403, "application/problem+json")
    problem = reply.json()
    assert (problem["code"], problem["retryable"]) == ("over-quota", False)
    assert problem["quotas"] == [
        {"quota": "queued_jobs", "limit": 0, "used": 0, "free_at": None},
        {"quota": "priority", "limit": 5, "used": 9, "free_at": None},
    ]
    assert [fault["where"] for fault in problem["faults"]] == ["project", "priority"]


def test_quotas_are_set_shown_and_lifted(served: Served) -> None:
    limit(served, max_running_jobs=3, allowed_base_models=["some/*"])
    limit(served, max_pictures_per_day=9, max_running_jobs=None)
    shown = served.call("GET", "/v1/projects/default/quotas", served.keys.member).json()
    assert (shown["running_jobs"]["limit"], shown["pictures_per_day"]["limit"]) == (None, 9)
    assert shown["allowed_base_models"] == ["some/*"]
    assert shown["pictures_per_day"]["free_at"].endswith("T00:00:00Z")


@pytest.mark.parametrize(
    "body",
    [
        {"max_running_jobs": -1},
        {"max_requests_per_s": 0},
        {"max_priority": 101},
        {"allowed_adapters": [""]},
        {"max_pictures": 5},
    ],
)
def test_limits_out_of_bounds_are_refused_by_name(served: Served, body: dict[str, object]) -> None:
    reply = served.call("PUT", "/v1/projects/default/quotas", served.keys.admin, json=body)
    assert reply.status_code == 400
    assert next(iter(body)) in reply.json()["faults"][0]["where"]


def test_requests_beyond_the_rate_are_told_when_to_come_back(served: Served) -> None:
    limit(served, max_requests_per_s=3)
    replies = [served.call("GET", "/v1/jobs", served.keys.member) for _ in range(4)]
    assert [reply.headers["ratelimit-remaining"] for reply in replies] == ["2", "1", "0", "0"]
    assert [reply.status_code for reply in replies] == [200, 200, 200, 429]
    last = replies[-1]
    assert (last.json()["code"], last.json()["retryable"]) == ("rate-limited", True)
    assert (last.headers["retry-after"], last.headers["ratelimit-limit"]) == ("1", "3")
    assert last.headers["ratelimit-reset"] == "1"


def test_submissions_on_the_short_way_are_counted_too(served: Served) -> None:
    limit(served, max_requests_per_s=3)
    body = {"kind": "x-count", "spec": {"steps": 5}}
    replies = [served.call("POST", "/v1/jobs", served.keys.member, json=body) for _ in range(4)]
    assert [reply.status_code for reply in replies] == [201, 201, 201, 429]
    assert replies[1].headers["ratelimit-remaining"] == "1"
    assert "quotas" not in replies[3].json()


def test_each_key_has_a_bucket_of_its_own(served: Served) -> None:
    limit(served, max_requests_per_s_per_key=2)
    assert [served.call("GET", "/v1/jobs", served.keys.member).status_code for _ in range(3)] == [200, 200, 429]
    assert served.call("GET", "/v1/jobs", served.keys.admin).status_code == 200


def test_nodes_are_never_slowed_down(served: Served) -> None:
    limit(served, max_requests_per_s=1)
    node = {"node_id": "node_00000001", "machine_id": "m1", "name": "m1"}
    for number in range(4):
        body = {"request_id": f"request-{number}", "node": node, "kinds": ["train"]}
        reply = served.call("POST", "/v1/node/claim", served.keys.node, json=body)
        assert reply.status_code == 200, reply.text
        assert "ratelimit-limit" not in reply.headers


def test_project_without_a_rate_gets_no_headers(served: Served) -> None:
    reply = served.call("GET", "/v1/jobs", served.keys.member)
    assert "ratelimit-limit" not in reply.headers
