"""The whole way over HTTP: from files to a dataset, a job, its node, and the result on the user's disk."""

import hashlib
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.fixtures.served import Served, a_dataset

from giornata.client import Client
from giornata.client.node import NodeClient
from giornata.client.storage.training_folder import read_training_folder
from giornata.client.storage.transfer import download, upload_file
from giornata.domain.errors import InvalidInput, LeaseLost, NotFound
from giornata.domain.jobs.job import JobState
from giornata.protocol.events import EventType
from giornata.protocol.node.work import (
    Claim,
    CommitArtifact,
    CommitCache,
    CommitCheckpoint,
    CompleteAttempt,
    Heartbeat,
    Lease,
    LogLines,
    MetricBatch,
    NodeInfo,
    NoticeReport,
    ReleaseAttempt,
    StepMetrics,
)
from giornata.protocol.project.admin import Scope
from giornata.protocol.uploads import FileToUpload, UploadRequest


class NodeByHand:
    """What an agent does, by hand."""

    def __init__(self, served: Served, number: int, http: httpx.Client, folder: Path) -> None:
        self.calls = NodeClient(http, node_key=served.keys.node)
        self._http, self._number, self._folder = http, number, folder

    def lease(self, kind: str = "train") -> Lease:
        node = NodeInfo(node_id=f"node_0000000{self._number}", machine_id=f"m-{self._number}", name="n")
        reply = self.calls.claim(Claim(request_id=f"request-{self._number}", node=node, kinds=(kind,)))
        assert reply.lease is not None, reply
        return reply.lease

    def put(self, lease: Lease, body: bytes) -> dict[str, object]:
        """Upload bytes; what a commit has to say of them."""
        sha256 = hashlib.sha256(body).hexdigest()
        path = self._folder / sha256
        path.write_bytes(body)
        wanted = UploadRequest(files=(FileToUpload(sha256=sha256, size_bytes=len(body)),))
        (ticket,) = self.calls.request_uploads(lease, wanted).items
        etags = upload_file(self._http, path, ticket, renew=lambda _: [])
        return {"sha256": sha256, "size_bytes": len(body), "upload_id": ticket.upload_id, "etags": tuple(etags)}


@pytest.fixture
def node_http(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url) as http:
        yield http


def test_from_pictures_to_a_lora(served: Served, node_http: httpx.Client, tmp_path: Path) -> None:
    sdk = served.client()
    dataset = a_dataset(sdk, tmp_path)
    spec = {"model": "tiny", "dataset": dataset.id, "instance_prompt": "a photo of timber dog", "max_train_steps": 4}
    job = sdk.submit(spec, labels={"for": "test"})
    assert sdk.estimate(spec).total_steps == 4

    # The first node gets as far as a checkpoint, and is told to go.
    first = NodeByHand(served, 1, node_http, tmp_path)
    lease = first.lease()
    assert lease.job_id == job.id
    for wanted in lease.inputs:
        path = tmp_path / "in" / wanted.name
        promised = wanted.download
        download(node_http, promised.request, path, sha256=promised.sha256, size_bytes=promised.size_bytes)
        assert path.read_bytes() == (tmp_path / wanted.name).read_bytes()
    assert len(lease.inputs) == 3
    first.calls.heartbeat(lease, Heartbeat(step=1, total_steps=4, phase="training"))
    first.calls.log(lease, LogLines(first=0, lines=("step 1", "step 2 \u2028 with a separator")))
    points = tuple(StepMetrics(step=step, values={"loss": 1 / step}) for step in (1, 2))
    first.calls.metrics(lease, MetricBatch(points=points))
    first.calls.notice(lease, NoticeReport(name="hello", data={"a": 1}))
    checkpoint = first.put(lease, b"checkpoint at step 2")
    first.calls.commit_checkpoint(lease, CommitCheckpoint.model_validate({"step": 2, **checkpoint}))
    cached = first.put(lease, b"latents of the dataset")
    first.calls.commit_cache(lease, "latents:v1", CommitCache.model_validate(cached))
    assert first.calls.release(lease, ReleaseAttempt(step=2)).job_state == "queued"
    with pytest.raises(LeaseLost):
        first.calls.heartbeat(lease, Heartbeat(step=3))

    # The second goes on from it, and finishes.
    second = NodeByHand(served, 2, node_http, tmp_path)
    lease = second.lease()
    assert [(each.step, lease.attempt) for each in lease.checkpoints] == [(2, 2)]
    resumed = tmp_path / "resumed"
    promised = lease.checkpoints[0].download
    download(node_http, promised.request, resumed, sha256=promised.sha256, size_bytes=promised.size_bytes)
    assert resumed.read_bytes() == b"checkpoint at step 2"
    found = second.calls.get_cache(lease, "latents:v1").download
    assert found is not None
    assert found.sha256 == cached["sha256"]
    second.calls.heartbeat(lease, Heartbeat(step=4, total_steps=4))
    artifact = second.put(lease, b"the LoRA")
    second.calls.commit_artifact(lease, CommitArtifact.model_validate({"name": "lora.safetensors", **artifact}))
    done = CompleteAttempt(step=4, artifacts=("lora.safetensors",), summary={"loss": 0.25})
    assert second.calls.complete(lease, done).job_state == "succeeded"
    assert second.calls.complete(lease, done).job_state == "succeeded"

    # What its owner sees.
    job = sdk.wait(job.id)
    assert (job.state, job.step, len(job.attempts), job.interruptions) == (JobState.SUCCEEDED, 4, 2, 1)
    types = [event.type for event in sdk.events(job.id, follow=True)]
    assert types[0] == EventType.JOB_SUBMITTED
    assert {EventType.CHECKPOINT_COMMITTED, EventType.JOB_REQUEUED, EventType.NOTICE} <= set(types)
    assert types == [event.type for event in sdk.events(job.id)]
    assert [line.line for line in sdk.logs(job.id)] == ["step 1", "step 2 \u2028 with a separator"]
    assert [(point.step, point.values["loss"]) for point in sdk.metrics(job.id)] == [(1, 1.0), (2, 0.5)]
    assert [each.step for each in sdk.checkpoints(job.id)] == [2]
    assert sdk.download_checkpoint(job.id, 2, tmp_path / "state").read_bytes() == b"checkpoint at step 2"
    with pytest.raises(NotFound, match="there are: 2"):
        sdk.download_checkpoint(job.id, 3, tmp_path / "state")
    (path,) = sdk.download(job.id, tmp_path / "out")
    assert (path.name, path.read_bytes()) == ("lora.safetensors", b"the LoRA")
    assert {node.machine_id for node in served.client(served.keys.admin).nodes()} == {"m-1", "m-2"}


def test_upload_sends_only_files_that_server_lacks(served: Served, tmp_path: Path) -> None:
    sdk = served.client()
    paths = [tmp_path / name for name in ("a", "b", "c", "large")]
    for path in paths:
        path.write_bytes(path.name.encode() * 1000)
    paths[2].write_bytes(paths[0].read_bytes())
    paths[3].write_bytes(b"x" * (17 * 2**20))  # in parts
    seen: list[tuple[int, int]] = []
    first = sdk.upload_files(paths[:3], lambda done, total: seen.append((done, total)))
    assert [file.sent for file in first] == [True, True, True]
    assert (seen[-1], first[0].sha256 == first[2].sha256) == ((2000, 2000), True)
    again = sdk.upload_files(paths)
    assert [file.sent for file in again] == [False, False, False, True]
    assert [file.sent for file in sdk.upload_files(paths)] == [False] * 4


def test_files_that_cannot_be_sent_are_all_named(served: Served, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidInput) as caught:
        served.client().upload_files([tmp_path / "empty", tmp_path / "none", tmp_path])
    assert [Path(fault.where).name for fault in caught.value.faults] == ["empty", "none", tmp_path.name]


def test_a_folder_at_fault_sends_nothing(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "c.png"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "orphan.txt").write_text("a caption of nothing")

    def asked(request: httpx.Request) -> httpx.Response:
        raise AssertionError(f"nothing should be asked: {request.url}")

    sdk = Client("http://server.test", "gk_x", http=httpx.Client(transport=httpx.MockTransport(asked)))
    with pytest.raises(InvalidInput) as caught:
        sdk.dataset_from_folder(tmp_path, "a photo")
    where = [fault.where for fault in caught.value.faults]
    assert {"a.png", "b.png", "c.png", "orphan.txt"} <= set(where)


def test_faults_of_folder_pictures_and_names_come_together(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no picture")
    for number, name in enumerate(("b.png", "c.png", "new\nline.png")):
        (tmp_path / name).write_bytes(bitmap(number))
    (tmp_path / "orphan.txt").write_text("a caption of nothing")
    with pytest.raises(InvalidInput) as caught:
        read_training_folder(tmp_path, instance_prompt="a photo")
    assert {"a.png", "orphan.txt", "new\nline.png"} <= {fault.where for fault in caught.value.faults}


def test_a_good_folder_becomes_a_dataset(served: Served, tmp_path: Path) -> None:
    for number, name in enumerate(("1 ä.png", "2.png", "3.png")):
        (tmp_path / name).write_bytes(bitmap(number))
    (tmp_path / "2.txt").write_text("with a caption")
    sdk = served.client()
    dataset = sdk.dataset_from_folder(tmp_path, "a photo of timber dog")
    assert sdk.dataset_from_folder(tmp_path, "a photo of timber dog").id == dataset.id
    items = sdk.get_dataset(dataset.id).items
    assert sorted((item.name, item.caption) for item in items) == [
        ("1 ä.png", None),
        ("2.png", "with a caption"),
        ("3.png", None),
    ]
    assert [each.id for each in sdk.datasets()] == [dataset.id]


@pytest.mark.parametrize("count", [20, 80])
def test_pictures_go_through_client_store_and_api_in_memory_of_a_fixed_size(
    served: Served, node_http: httpx.Client, tmp_path: Path, count: int
) -> None:
    """Client, server and node are in this process. What they hold at a time does not depend on the number."""
    for number in range(count):
        (tmp_path / f"{number}.bmp").write_bytes(bitmap(number, side=256))
    sdk, node, target = served.client(), NodeByHand(served, 1, node_http, tmp_path), tmp_path / "fetched"
    tracemalloc.start()
    try:
        dataset = sdk.dataset_from_folder(tmp_path, "a photo of timber dog")
        sdk.submit({"model": "tiny", "dataset": dataset.id, "instance_prompt": "a dog"})
        lease = node.lease()
        for wanted in lease.inputs:
            what = wanted.download
            download(node_http, what.request, target, sha256=what.sha256, size_bytes=what.size_bytes)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len({wanted.download.sha256 for wanted in lease.inputs}) == count
    assert peak_bytes < FEW_PICTURES_BYTES


FEW_PICTURES_BYTES = 40 * 3 * 256**2
"""All decoded pictures of the larger set have twice as many."""


def bitmap(number: int, side: int = 64) -> bytes:
    """A square BMP in one gray, with the number behind it."""
    pixels = bytes([(50 * number + 20) % 256]) * (side * side * 3) + number.to_bytes(4, "little")
    header = b"BM" + (54 + len(pixels)).to_bytes(4, "little") + bytes(4) + (54).to_bytes(4, "little")
    size, one, bits = side.to_bytes(4, "little"), (1).to_bytes(2, "little"), (24).to_bytes(2, "little")
    return header + (40).to_bytes(4, "little") + size + size + one + bits + bytes(24) + pixels


def test_project_key_reaches_only_its_project_and_stops_working_when_revoked(served: Served) -> None:
    root = served.client(served.keys.admin)
    root.create_project("third", name="The third")
    assert {project.id for project in root.projects()} == {"default", "other", "third"}
    created = root.create_key(scope=Scope.MEMBER, project_id="third", name="for a test")
    third = served.client(created.secret)
    assert list(third.jobs()) == []
    job = served.client().submit({"steps": 1}, kind="x-count")
    with pytest.raises(NotFound):
        third.get_job(job.id)
    assert root.revoke_key(created.id).revoked_at is not None
    with pytest.raises(Exception, match="revoked"):
        list(third.jobs())


def test_an_artifact_cannot_be_written_elsewhere(tmp_path: Path) -> None:
    row = {"sha256": "0" * 64, "size_bytes": 1, "media_type": "a/b", "created_at": "2026-01-01T00:00:00Z"}
    request = {"method": "GET", "url": "http://x.test", "expires_at": "2026-01-01T00:00:00Z"}
    items = [{"name": name, "request": request, **row} for name in ("../a", "a/..", "/etc/a", "fine")]
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={"items": items}))
    sdk = Client("http://server.test", "gk_x", http=httpx.Client(transport=transport))
    with pytest.raises(InvalidInput) as caught:
        sdk.download("job_1", tmp_path / "out")
    assert [fault.where for fault in caught.value.faults] == ["../a", "a/..", "/etc/a"]
    assert not (tmp_path / "out").exists()


def test_completing_an_upload_twice_is_fine(served: Served) -> None:
    body, key = b"abc", served.keys.member
    files = [{"sha256": hashlib.sha256(body).hexdigest(), "size_bytes": len(body)}]
    ticket = served.call("POST", "/v1/uploads", key, json={"files": files}).json()["items"][0]
    assert served.http.put(ticket["put"]["url"], content=body, headers=ticket["put"]["headers"]).status_code == 200
    path = f"/v1/uploads/{ticket['upload_id']}/complete"
    first, again = (served.call("POST", path, key, json={}) for _ in range(2))
    assert first.status_code == again.status_code == 200
    assert first.json() == again.json() == files[0]


def test_results_of_long_ago_that_are_called_like_folders_are_files(tmp_path: Path) -> None:
    row = {"sha256": hashlib.sha256(b"x").hexdigest(), "size_bytes": 1, "media_type": "a/b"}
    request = {"method": "GET", "url": "http://x.test/x", "expires_at": "2026-01-01T00:00:00Z"}
    items = [{"name": n, "request": request, "created_at": "2026-01-01T00:00:00Z", **row} for n in (".", "..")]

    def answer(asked: httpx.Request) -> httpx.Response:
        if asked.url.path == "/x":
            return httpx.Response(200, content=iter([b"x"]))
        return httpx.Response(200, json={"items": items})

    sdk = Client("http://server.test", "gk_x", http=httpx.Client(transport=httpx.MockTransport(answer)))
    written = sdk.download("job_1", tmp_path / "out")
    assert [path.relative_to(tmp_path).as_posix() for path in written] == ["out/_", "out/__"]
    assert [path.read_bytes() for path in written] == [b"x", b"x"]
