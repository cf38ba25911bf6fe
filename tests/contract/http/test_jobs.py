"""Jobs over HTTP."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.fixtures.served import Served

from giornata.api.job_routes.jobs import wanted
from giornata.domain.errors import InvalidInput
from giornata.domain.jobs.job import JobState

JOB = {"kind": "x-count", "spec": {"steps": 5}}


def test_a_submission_says_where_the_job_is(served: Served) -> None:
    response = served.call("POST", "/v1/jobs", served.keys.member, json=JOB)
    assert response.status_code == 201
    job = response.json()
    assert response.headers["location"] == job["urls"]["self"] == f"/v1/jobs/{job['id']}"
    for name, path in job["urls"].items():
        method = "POST" if name in {"cancel", "retry"} else "GET"
        assert served.call(method, path, served.keys.member).status_code != 404, name


def test_d8_the_same_key_makes_one_job(served: Served) -> None:
    def submit(body: dict[str, object] = JOB, key: str = "once") -> tuple[int, dict[str, object]]:
        headers = {"Idempotency-Key": key}
        response = served.call("POST", "/v1/jobs", served.keys.member, json=body, headers=headers)
        return response.status_code, response.json()

    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: submit(), range(8)))
    assert sorted(status for status, _ in replies) == [200] * 7 + [201]
    assert len({body["id"] for _, body in replies}) == 1
    status, body = submit({"kind": "x-count", "spec": {"steps": 6}})
    assert (status, body["code"]) == (422, "idempotency-mismatch")
    assert submit(key="another")[0] == 201
    assert len(served.call("GET", "/v1/jobs", served.keys.member).json()["items"]) == 2


def test_lists_are_filtered_and_paged(served: Served) -> None:
    def ids(query: str) -> list[str]:
        page = served.call("GET", f"/v1/jobs?{query}", served.keys.member)
        return [job["id"] for job in page.json()["items"]]

    made = []
    for number in range(5):
        body = {**JOB, "kind": f"x-{number % 2}", "labels": {"n": str(number), "team": "a:b"}}
        made.append(served.call("POST", "/v1/jobs", served.keys.member, json=body).json()["id"])
    served.call("POST", f"/v1/jobs/{made[0]}/cancel", served.keys.member)
    newest_first = made[::-1]
    assert ids("") == newest_first
    assert ids("kind=x-1") == [made[3], made[1]]
    assert ids("state=canceled") == [made[0]]
    assert ids("state=canceled,queued") == ids("state=canceled&state=queued") == newest_first
    assert ids("state=running") == []
    assert ids("label=n:3") == [made[3]]
    assert ids("label=n:3&label=team:a:b") == [made[3]]
    assert ids("label=n:3&label=team:a") == []
    assert [job.id for job in served.client().jobs(states=[JobState.QUEUED])] == newest_first[:-1]
    first = served.call("GET", "/v1/jobs?limit=2", served.keys.member).json()
    second = served.call("GET", f"/v1/jobs?limit=2&cursor={first['next']}", served.keys.member).json()
    assert [job["id"] for job in [*first["items"], *second["items"]]] == newest_first[:4]


def test_all_filters_that_mean_nothing_are_named_at_once() -> None:
    with pytest.raises(InvalidInput) as caught:
        wanted(["queued,lost", "gone"], ["a:b", "c"])
    assert [fault.message for fault in caught.value.faults] == [
        "'lost' is not a state",
        "'gone' is not a state",
        "'c' is not a label",
    ]


def test_d5_d6_ends_that_cannot_be(served: Served) -> None:
    job = served.call("POST", "/v1/jobs", served.keys.member, json=JOB).json()
    cancel = f"{job['urls']['cancel']}"
    assert served.call("POST", job["urls"]["retry"], served.keys.member).json()["code"] == "illegal-transition"
    first, second = (served.call("POST", cancel, served.keys.member) for _ in range(2))
    assert first.status_code == second.status_code == 200
    assert second.json()["state"] == "canceled"
    again = served.call("POST", job["urls"]["retry"], served.keys.member)
    assert (again.status_code, again.json()["retry_of"]) == (201, job["id"])
    assert again.headers["location"] == f"/v1/jobs/{again.json()['id']}"
    assert served.call("POST", "/v1/jobs/job_none/cancel", served.keys.member).status_code == 404


def test_an_estimate_stores_nothing(served: Served) -> None:
    response = served.call("POST", "/v1/jobs:estimate", served.keys.member, json=JOB)
    assert response.status_code == 200
    assert response.json()["total_steps"] == 5
    assert served.call("GET", "/v1/jobs", served.keys.member).json()["items"] == []


def test_a_comparison_without_jobs_or_of_too_many_names_the_parameter(served: Served) -> None:
    for query in ("", "?" + "&".join(f"job=job_{number}" for number in range(65)), f"?job={'j' * 65}"):
        reply = served.call("GET", f"/v1/jobs:compare{query}", served.keys.member)
        assert (reply.status_code, reply.json()["code"]) == (400, "invalid-input"), query
        assert [fault["where"].split(".")[:2] for fault in reply.json()["faults"]] == [["query", "job"]]
