"""Orders of pictures over HTTP: placed in one request, read by number, and streamed as pictures end."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fixtures.drawn_orders import DrawingNode, drawn_bytes
from tests.fixtures.served import Served

from giornata.domain.errors import InvalidInput
from giornata.protocol.orders.order_pictures import OrderPicture

SPEC = {"model": "some/model", "prompt": "a fox", "width": 64, "height": 64}
STREAM = {"Accept": "text/event-stream"}


def ordered(served: Served, **fields: Any) -> httpx.Response:
    headers = fields.pop("headers", {})
    body = {**SPEC, **fields}
    return served.call("POST", "/v1/generations", served.keys.member, json=body, headers=headers)


def faults(response: httpx.Response) -> dict[str, str]:
    assert response.status_code == 400, response.text
    return {fault["where"]: fault["message"] for fault in response.json()["faults"]}


def pictures(served: Served, job_id: str, query: str = "", **headers: str) -> httpx.Response:
    return served.call("GET", f"/v1/jobs/{job_id}/pictures{query}", served.keys.member, headers=headers)


def streamed(response: httpx.Response) -> list[OrderPicture]:
    lines = [line[6:] for line in response.text.split("\n") if line.startswith("data: {")]
    return [OrderPicture.model_validate_json(line) for line in lines if line != "{}"]


def test_order_without_a_preference_is_answered_at_once_with_the_job(served: Served) -> None:
    reply = ordered(served, num_images_per_prompt=3, name="foxes", labels={"for": "me"}, priority=2)
    assert reply.status_code == 202
    job = reply.json()["job"]
    assert reply.headers["location"] == job["urls"]["self"] == f"/v1/jobs/{job['id']}"
    assert (job["kind"], job["name"], job["priority"], job["labels"]) == ("generate", "foxes", 2, {"for": "me"})
    assert job["pictures"]["queued"] == job["total_steps"] == 3
    assert [picture["seed"] for picture in reply.json()["pictures"]] == [job["spec"]["seed"] + n for n in range(3)]
    assert "preference-applied" not in reply.headers


def test_order_that_waits_has_its_pictures_when_they_are_done(served: Served) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ordered, served, num_images_per_prompt=2, seed=5, headers={"Prefer": "wait=30"})
        node = DrawingNode(served=served)
        while not node.work():
            pass
        reply = asked.result(timeout=30)
    assert (reply.status_code, reply.headers["preference-applied"]) == (200, "wait=30")
    assert reply.json()["job"]["state"] == "succeeded"
    for picture in reply.json()["pictures"]:
        content = served.http.get(picture["request"]["url"], headers=picture["request"]["headers"]).content
        assert content == drawn_bytes(picture["seed"])
        assert hashlib.sha256(content).hexdigest() == picture["sha256"]


def test_order_whose_time_is_up_goes_on(served: Served) -> None:
    reply = ordered(served, headers={"Prefer": "wait=1"})
    assert (reply.status_code, reply.json()["job"]["state"]) == (202, "queued")
    assert DrawingNode(served=served).work() == 1
    assert served.client().get_job(reply.json()["job"]["id"]).state == "succeeded"


def test_request_with_the_same_key_is_the_same_order(served: Served) -> None:
    first, again = (ordered(served, headers={"Idempotency-Key": "one"}).json()["job"]["id"] for _ in range(2))
    assert first == again


def test_all_faults_of_a_request_come_at_once_at_its_own_places(standing: Served) -> None:
    odd = {
        "PROMPT": "a (fox",
        "MODEL_ID": "some/model",
        "WIDTH": 7,
        "PIPELINE": "Foo",
        "scheduler": "nope",
        "promt": "x",
    }
    reply = standing.call("POST", "/v1/generations", standing.keys.member, json=odd)
    assert set(faults(reply)) == {"PROMPT", "WIDTH", "PIPELINE", "scheduler", "promt"}
    missing = standing.call("POST", "/v1/generations", standing.keys.member, json={})
    assert {"model", "prompts"} & set(faults(missing))


def test_faults_of_a_job_and_of_its_spec_come_at_once(standing: Served) -> None:
    odd = {"PROMPT": "a (fox", "model": "some/model", "loras": ["stile"], "mask": "0" * 64, "priority": "high"}
    reply = standing.call("POST", "/v1/generations", standing.keys.member, json=odd | {"sede": 1})
    assert set(faults(reply)) == {"priority", "PROMPT", "loras.0", "mask", "sede"}
    spec = {name.lower(): odd[name] for name in odd if name != "priority"}
    for path in ("/v1/jobs", "/v1/jobs:estimate"):
        job = {"kind": "generate", "spec": spec, "priority": "high", "labels": {"": "x"}}
        reply = standing.call("POST", path, standing.keys.member, json=job)
        assert set(faults(reply)) == {"priority", "labels.", "spec.prompt", "spec.loras.0", "spec.mask"}
    train = {"kind": "train", "spec": {"model": "some/model", "rank": 0}, "priority": "high"}
    reply = standing.call("POST", "/v1/jobs", standing.keys.member, json=train)
    assert {"priority", "spec.rank", "spec.dataset"} <= set(faults(reply))


def test_job_of_kind_generate_is_the_same_order(served: Served) -> None:
    job = served.client().submit(SPEC, kind="generate")
    assert isinstance(job.spec["seed"], int) and job.spec["prompts"] == ["a fox"]
    with pytest.raises(InvalidInput) as refused:
        served.client().submit({**SPEC, "width": 65}, kind="generate")
    assert [fault.where for fault in refused.value.faults] == ["spec.width"]


def test_estimate_of_an_order_tells_pictures_and_pixel_steps(standing: Served) -> None:
    spec = {**SPEC, "num_images_per_prompt": 3, "num_inference_steps": 10}
    found = standing.client().estimate(spec, kind="generate")
    assert (found.pictures, found.total_steps, found.pixel_steps) == (3, 3, 3 * 64 * 64 * 10)


def test_ten_thousand_prompts_are_one_request(served: Served) -> None:
    prompts = [f"a photograph of the animal with the number {number}, in the snow" for number in range(10_000)]
    reply = ordered(served, prompt=prompts)
    assert reply.json()["job"]["pictures"]["queued"] == 10_000
    assert (len(reply.json()["pictures"]), reply.json()["next"]) == (500, 499)
    assert "prompt" in faults(ordered(served, prompt=[*prompts, "one more"]))


def test_pictures_come_in_pages_by_number_and_with_their_states(served: Served) -> None:
    job_id = ordered(served, num_images_per_prompt=5, seed=10).json()["job"]["id"]
    node = DrawingNode(served=served)
    leased = node.claim(most=3)
    node.draw(leased[:2], blocked=[leased[1]["number"]])
    node.fail(leased[2], reason="bad_spec", message="cannot be drawn")
    first = pictures(served, job_id, "?limit=3").json()
    rest = pictures(served, job_id, f"?limit=3&after={first['next']}").json()
    found = [OrderPicture.model_validate(each) for each in [*first["items"], *rest["items"]]]
    assert [picture.number for picture in found] == list(range(5)) and rest["next"] is None
    by_number = {picture.number: picture for picture in found}
    done, blocked, failed = (by_number[each["number"]] for each in leased)
    assert done.request is not None and done.size_bytes == len(drawn_bytes(done.seed)) and done.flags == ()
    assert (blocked.state, blocked.flags, blocked.request, blocked.sha256) == ("succeeded", ("blocked",), None, None)
    assert (failed.state, failed.request) == ("failed", None) and "cannot be drawn" in str(failed.error)
    assert {picture.state for picture in found if picture.number not in (0, 1, 2)} <= {"queued", "leased"}
    counts = served.client().get_job(job_id)
    assert counts.pictures is not None and counts.step == 2
    assert (counts.pictures.succeeded, counts.pictures.failed) == (2, 1)


def test_picture_by_number_is_returned_as_json_or_307_redirect_to_file(served: Served) -> None:
    job_id = ordered(served, seed=3).json()["job"]["id"]
    waiting = pictures(served, job_id, "/0?as=redirect")
    assert (waiting.status_code, waiting.json()["code"]) == (404, "not-found")
    DrawingNode(served=served).work()
    picture = OrderPicture.model_validate(pictures(served, job_id, "/0").json())
    assert (picture.filename, picture.media_type) == (f"{job_id}-0000.png", "image/png")
    redirect = pictures(served, job_id, "/0?as=redirect")
    assert redirect.status_code == 307
    file = served.http.get(redirect.headers["location"])
    assert (file.content, file.headers["content-type"]) == (drawn_bytes(3), "image/png")
    assert pictures(served, job_id, "/1").status_code == 404


def test_stream_yields_each_picture_once_however_often_it_is_taken_up_again(served: Served) -> None:
    job_id = ordered(served, num_images_per_prompt=6).json()["job"]["id"]
    node = DrawingNode(served=served)
    seen, after = [], 0
    for _ in range(3):
        node.draw(list(reversed(node.claim(most=2))))
        node.complete()
        for picture in served.client().ended_pictures(job_id, after=after):
            seen.append(picture.number)
            after = picture.id
    assert sorted(seen) == list(range(6))
    response = pictures(served, job_id, **STREAM)
    whole = streamed(response)
    assert [picture.number for picture in whole] == seen and response.text.endswith("event: end\ndata: {}\n\n")
    behind = streamed(pictures(served, job_id, **STREAM, **{"Last-Event-ID": str(whole[3].id)}))
    assert [picture.number for picture in behind] == seen[4:]
    assert pictures(served, job_id, **STREAM, **{"Last-Event-ID": str(whole[-1].id)}).status_code == 204


def test_followers_get_pictures_as_they_end_until_the_order_does(served: Served) -> None:
    order = served.client().generate("a fox", model="some/model", width=64, height=64, num_images_per_prompt=3)
    node = DrawingNode(served=served)
    follower = served.client().pictures(order.id, follow=True)
    node.draw(node.claim(most=1))
    assert next(follower).state == "succeeded"
    node.complete()
    node.work()
    assert len(list(follower)) == 2


def test_canceled_order_ends_its_streams(served: Served) -> None:
    order = served.client().generate(["a", "b"], model="some/model")
    served.client().cancel(order.id)
    assert list(served.client().pictures(order.id, follow=True)) == []
    assert {picture.state for picture in served.client().pictures(order.id)} == {"canceled"}


def test_pictures_of_another_project_are_not_there(served: Served) -> None:
    order = served.client().generate("a", model="some/model")
    for path in (f"/v1/jobs/{order.id}/pictures", f"/v1/jobs/{order.id}/pictures/0", "/v1/jobs/job_none/pictures"):
        key = served.keys.member if "none" in path else served.keys.other_admin
        assert served.call("GET", path, key).status_code == 404
    assert served.call("GET", f"/v1/jobs/{order.id}/pictures", served.keys.node).status_code == 403


def test_downloads_are_verified_and_named_by_order_and_number(served: Served, tmp_path: Path) -> None:
    client = served.client()
    order = client.generate(
        "a fox", model="some/model", num_images_per_prompt=2, name="two foxes", image_format="webp"
    )
    DrawingNode(served=served).work()
    files = client.download_pictures(order.id, tmp_path)
    assert [file.name for file in files] == [f"two foxes-{order.id[-6:]}-{number:04d}.webp" for number in range(2)]
    assert [file.read_bytes() for file in files] == [drawn_bytes(order.spec["seed"] + number) for number in range(2)]
    changed = files[0].stat().st_mtime_ns
    assert client.download_pictures(order.id, tmp_path) == files and files[0].stat().st_mtime_ns == changed
