"""A lease of pictures over HTTP, from the claim to the completion, as a node sees it."""

import hashlib
from typing import Any

from tests.fixtures.picture_rig import generate_spec, order_record
from tests.fixtures.served import Served

from giornata.control.jobs.submission.submit import enqueue

NODE = {"node_id": "node_00000001", "machine_id": "machine-1", "name": "node-1"}


def place(served: Served, pictures: int) -> str:
    ctx = served.ctx
    order_id = ctx.names.new("job")
    with ctx.store.begin() as tx:
        enqueue(tx, order_record(order_id, at_ms=ctx.clock.now_ms(), spec=generate_spec(pictures)))
    return order_id


def claim(served: Served, **said: Any) -> dict[str, Any]:
    body = {"request_id": "request-1", "node": NODE, "kinds": ["generate"], "max_pictures": 4, **said}
    reply: dict[str, Any] = served.call("POST", "/v1/node/claim", served.keys.node, json=body).json()
    return reply


def test_a_node_draws_a_lease_from_claim_to_completion(served: Served) -> None:
    order_id = place(served, 2)
    lease = claim(served, wait_s=5)["picture_lease"]
    path, token = f"/v1/node/attempts/{lease['attempt_id']}", lease["token"]
    contents = {each["number"]: f"picture {each['number']}".encode() for each in lease["pictures"]}
    drawn = [
        {
            "order_id": order_id,
            "number": number,
            "sha256": hashlib.sha256(content).hexdigest(),
            "size_bytes": len(content),
        }
        for number, content in contents.items()
    ]
    urls = served.call("POST", f"{path}/picture-uploads", token, json={"pictures": drawn}).json()["uploads"]
    early = served.call("POST", f"{path}/pictures", token, json={"drawn": drawn})
    assert (early.status_code, early.json()["code"]) == (409, "blob-missing")
    for upload in urls:
        wrong = served.http.put(
            upload["url"], content=b"something", headers=upload["headers"] | {"Content-Length": "9"}
        )
        assert wrong.status_code == 409
        sent = served.http.put(upload["url"], content=contents[upload["number"]], headers=upload["headers"])
        assert sent.status_code == 200
    assert served.call("POST", f"{path}/heartbeat", token, json={}).json()["order"] == "continue"
    report = {"drawn": drawn, "complete": True}
    reply = served.call("POST", f"{path}/pictures", token, json=report).json()
    accepted = [{"order_id": order_id, "number": n} for n in (0, 1)]
    assert reply == {"accepted": accepted, "dropped": [], "left": [], "ended": True}
    assert served.call("POST", f"{path}/pictures", token, json=report).json() == reply
    assert served.call("POST", f"{path}/complete", token, json={"step": 0}).json() == {"job_state": "succeeded"}
    job = served.call("GET", f"/v1/jobs/{order_id}", served.keys.admin).json()
    assert job["result"] == {"succeeded": 2, "failed": 0, "blocked": 0}


def test_a_lease_of_pictures_commits_no_checkpoint(served: Served) -> None:
    place(served, 1)
    lease = claim(served)["picture_lease"]
    path = f"/v1/node/attempts/{lease['attempt_id']}"
    lines = {"first": 0, "lines": ["hello"]}
    points = {"points": [{"step": 1, "values": {"loss": 1.0}}]}
    assert served.call("POST", f"{path}/metrics", lease["token"], json=points).status_code == 409
    assert served.call("POST", f"{path}/log", lease["token"], json=lines).status_code == 204
