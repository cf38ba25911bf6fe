"""Events and log lines as they happen."""

from concurrent.futures import ThreadPoolExecutor

import httpx
from tests.contract.http.test_refusals import lease
from tests.fixtures.served import Served

from giornata.protocol.jobs import Event

JOB = {"kind": "x-count", "spec": {"steps": 5}}
STREAM = {"Accept": "text/event-stream"}


def submitted(served: Served) -> str:
    return str(served.call("POST", "/v1/jobs", served.keys.member, json=JOB).json()["id"])


def whole(served: Served, job_id: str, what: str = "events", **headers: str) -> httpx.Response:
    path = f"/v1/jobs/{job_id}/{what}"
    return served.call("GET", path, served.keys.member, headers={**STREAM, **headers})


def ids(response: httpx.Response) -> list[int]:
    return [int(line[4:]) for line in response.text.split("\n") if line.startswith("id: ")]


def canceled(served: Served) -> tuple[str, list[int]]:
    job_id = submitted(served)
    served.client().cancel(job_id)
    return job_id, [event.id for event in served.client().events(job_id)]


def test_a_stream_holds_everything_and_ends(served: Served) -> None:
    job_id, known = canceled(served)
    response = whole(served, job_id)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-store"
    assert ids(response) == known
    assert len(known) == 2
    assert response.text.endswith("\n\nevent: end\ndata: {}\n\n")
    data = next(line[6:] for line in response.text.split("\n") if line.startswith("data: {"))
    assert Event.model_validate_json(data).type == "job.submitted"


def test_event_stream_resumes_after_last_event_id_header(served: Served) -> None:
    job_id, (first, second) = canceled(served)
    assert ids(whole(served, job_id, **{"Last-Event-ID": str(first)})) == [second]
    # ... which wins over the query that the stream was opened with.
    response = served.call(
        "GET",
        f"/v1/jobs/{job_id}/events?after=0",
        served.keys.member,
        headers={**STREAM, "Last-Event-ID": str(first)},
    )
    assert ids(response) == [second]


def test_stream_after_the_last_event_is_a_204(served: Served) -> None:
    job_id, known = canceled(served)
    assert whole(served, job_id, **{"Last-Event-ID": str(known[-1])}).status_code == 204
    assert whole(served, job_id, "logs").status_code == 204


def test_a_stream_to_nowhere_is_a_problem(served: Served) -> None:
    response = whole(served, "job_none")
    assert (response.status_code, response.json()["code"]) == (404, "not-found")
    response = whole(served, submitted(served), **{"Last-Event-ID": "x"})
    assert (response.status_code, response.json()["faults"][0]["where"]) == (400, "header.Last-Event-ID")


def test_a_quiet_stream_says_that_it_lives(served: Served) -> None:
    path = f"{served.url}/v1/jobs/{submitted(served)}/events"
    headers = {**STREAM, "Authorization": f"Bearer {served.keys.member}"}
    with served.http.stream("GET", path, headers=headers) as response:
        text = ""
        for chunk in response.iter_text():
            text += chunk
            if text.count(": still here\n\n") >= 4:
                break
    assert "event: end" not in text


def test_followers_hear_what_happens(served: Served) -> None:
    job_id = submitted(served)
    follower = served.client().events(job_id, follow=True)
    seen = [next(follower).type]
    mine = lease_of(served)
    seen += [next(follower).type]
    served.call("POST", f"/v1/node/attempts/{mine['attempt_id']}/fail", mine["token"], json=BAD)
    seen += [event.type for event in follower]
    assert seen == ["job.submitted", "attempt.started", "attempt.ended", "job.failed"]


def test_log_lines_come_as_they_are_written(served: Served) -> None:
    mine = lease(served)
    log = f"/v1/node/attempts/{mine['attempt_id']}/log"
    line = 'a\u2028b\u0085 "c"\\'
    served.call("POST", log, mine["token"], json={"first": 0, "lines": [line]})
    follower = served.client().logs(mine["job_id"], follow=True)
    assert next(follower).line == line
    served.call("POST", log, mine["token"], json={"first": 0, "lines": [line, "second"]})
    assert next(follower).line == "second"
    served.client().cancel(mine["job_id"])
    assert list(follower) == []


def test_a_closing_server_lets_followers_go(served: Served) -> None:
    job_id = submitted(served)
    with ThreadPoolExecutor(1) as pool:
        response = pool.submit(whole, served, job_id)
        served.app.state.wakeup.close()
        text = response.result(timeout=20).text
    assert "event: end" not in text


BAD = {"reason": "bad_spec", "message": "this cannot be"}


def lease_of(served: Served) -> dict[str, str]:
    node = {"node_id": "node_00000009", "machine_id": "m", "name": "n"}
    claim = {"request_id": "request-9", "node": node, "kinds": ["x-count"]}
    return dict(served.call("POST", "/v1/node/claim", served.keys.node, json=claim).json()["lease"])
