"""A job whose training goes on in another, over HTTP from the pictures to the node that gets the weights."""

from pathlib import Path

import httpx
from tests.fixtures.served import Served, a_dataset
from tests.fixtures.users import Bytes

from giornata.client.node import NodeClient
from giornata.protocol.node.work import Claim, CommitCheckpoint, CompleteAttempt, Lease, NodeInfo
from giornata.protocol.uploads import UploadRequest

WEIGHTS = Bytes(b"the weights after ten steps")
SPEC = {"model": "some/model", "instance_prompt": "a photo of sks toy", "max_train_steps": 10, "network_dim": 4}


def claim(served: Served, node: NodeClient, number: int) -> Lease:
    info = NodeInfo(node_id=f"node_{number:08}", machine_id="m-1", name="n-1")
    lease = node.claim(Claim(request_id=f"request-{number}", node=info, kinds=("train",))).lease
    assert lease is not None
    return lease


def train_it(served: Served, node: NodeClient) -> Lease:
    """A node works on the job in the queue, from the claim to the end."""
    lease = claim(served, node, 1)
    (ticket,) = node.request_uploads(lease, UploadRequest(files=(WEIGHTS.file,))).items
    assert ticket.put is not None
    sent = served.http.request("PUT", ticket.put.url, headers=ticket.put.headers, content=WEIGHTS.data)
    assert sent.status_code < 300
    commit = CommitCheckpoint(
        step=10, sha256=WEIGHTS.sha256, size_bytes=len(WEIGHTS.data), upload_id=ticket.upload_id
    )
    node.commit_checkpoint(lease, commit)
    node.complete(lease, CompleteAttempt(step=10))
    return lease


def test_continue_over_http_starts_new_job_from_trained_weights(served: Served, tmp_path: Path) -> None:
    dataset = a_dataset(served.client(), tmp_path)
    old = served.client().submit({**SPEC, "dataset": dataset.id})
    with httpx.Client(base_url=served.url) as http:
        node = NodeClient(http, node_key=served.keys.node)
        train_it(served, node)
        path, body = f"/v1/jobs/{old.id}/continue", {"spec": {"max_train_steps": 5, "unet_lr": 2e-5}}
        headers = {"Idempotency-Key": "more"}
        first, again = (served.call("POST", path, served.keys.member, json=body, headers=headers) for _ in range(2))
        assert (first.status_code, again.status_code) == (201, 200)
        job = first.json()
        assert first.headers["location"] == again.headers["location"] == f"/v1/jobs/{job['id']}"
        assert (job["total_steps"], job["step"], job["labels"]) == (5, 0, {"continued-from": old.id})
        assert (job["spec"]["rank"], job["spec"]["learning_rate"]) == (4, 2e-5)
        assert job["spec"]["dataset"] == dataset.id
        lease = claim(served, node, 2)
    assert lease.job_id == job["id"]
    assert not lease.checkpoints
    (start,) = [each for each in lease.inputs if each.role == "init_lora"]
    assert served.http.get(start.download.request.url, headers=start.download.request.headers).content == WEIGHTS.data
    assert job["spec"]["init_lora"] == start.download.sha256 == WEIGHTS.sha256
    assert [each.role for each in lease.inputs].count("instance") == 3


def test_the_sdk_continues_and_tells_what_is_wrong(served: Served, tmp_path: Path) -> None:
    spec = {**SPEC, "dataset": a_dataset(served.client(), tmp_path).id}
    old = served.client().submit(spec, min_vram_bytes=9)
    refused = served.call("POST", f"/v1/jobs/{old.id}/continue", served.keys.member, json={})
    assert (refused.status_code, refused.json()["code"]) == (409, "illegal-transition")
    with httpx.Client(base_url=served.url) as http:
        train_it(served, NodeClient(http, node_key=served.keys.node))
    job = served.client().continue_job(
        old.id, {"rank": 8}, name="more", priority=3, labels={"team": "a"}, min_vram_bytes=7
    )
    assert (old.min_vram_bytes, job.min_vram_bytes) == (9, 7)
    assert served.client().continue_job(old.id).min_vram_bytes == 9
    assert (job.spec["rank"], job.name, job.priority) == (8, "more", 3)
    assert job.labels == {"team": "a", "continued-from": old.id}
    assert (old.spec["output_name"], job.spec["output_name"]) == (old.id, "more")
    anonymous = served.client().continue_job(old.id)
    assert anonymous.spec["output_name"] == anonymous.id
    assert served.client().continue_job(old.id, {"output_name": "own"}, name="x").spec["output_name"] == "own"
    wrong = {"spec": {"rank": 0, "init_lora": "0" * 64}, "speed": 1}
    refused = served.call("POST", f"/v1/jobs/{old.id}/continue", served.keys.member, json=wrong)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid-input")
    stranger = served.call("POST", f"/v1/jobs/{old.id}/continue", served.keys.other_admin, json={})
    assert stranger.status_code == 404
