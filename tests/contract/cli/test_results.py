"""Results that are fetched: under the job's name, beside those of other jobs, at the end or later."""

import hashlib
import json
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import save
from tests.fixtures.served import a_dataset

from giornata.client.node import NodeClient
from giornata.protocol.node.work import Claim, CommitArtifact, CommitCheckpoint, CompleteAttempt, NodeInfo
from giornata.protocol.uploads import FileToUpload, UploadRequest

SPEC = {"model": "some/model", "instance_prompt": "a photo of sks dog", "max_train_steps": 5}


@pytest.fixture
def submit(served, tmp_path):
    client = served.client(served.keys.admin)
    dataset = a_dataset(client, tmp_path)
    return lambda name, **fields: client.submit({**SPEC, "dataset": dataset.id, **fields}, name=name)


@pytest.fixture
def work(served):
    """Do the oldest job of the queue, as soon as there is one, with these bytes as its results."""

    def done(number, results):
        with httpx.Client(base_url=served.url) as http:
            node = NodeClient(http, node_key=served.keys.node)
            info = NodeInfo(node_id=f"node_{number:08}", machine_id="m-1", name="n-1")
            lease = node.claim(Claim(request_id=f"request-{number}", node=info, kinds=("train",), wait_s=30)).lease
            for name, data in results.items():
                sha256 = hashlib.sha256(data).hexdigest()
                wanted = UploadRequest(files=(FileToUpload(sha256=sha256, size_bytes=len(data)),))
                (ticket,) = node.request_uploads(lease, wanted).items
                if ticket.put is not None:
                    http.put(ticket.put.url, headers=ticket.put.headers, content=data).raise_for_status()
                told = CommitArtifact(
                    name=name, sha256=sha256, size_bytes=len(data), upload_id=ticket.upload_id, media_type="x/y"
                )
                node.commit_artifact(lease, told)
            node.complete(lease, CompleteAttempt(step=5, artifacts=tuple(results)))

    return done


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn") / "toys"
    drawing = [sys.executable, "-m", "giornata.diffusion.tiny.drawings", "teal-heart", str(folder), "--count", "4"]
    subprocess.run([*drawing, "--size", "64"], check=True)
    return folder


def test_a_job_names_its_files_after_itself_or_its_output_name(submit):
    assert submit("my dog").spec["output_name"] == "my dog"
    assert submit("my dog", output_name="sks").spec["output_name"] == "sks"
    nameless = submit(None)
    assert nameless.spec["output_name"] == nameless.id


def test_train_follows_to_the_end_and_fetches_the_results(run, work, pictures, tmp_path):
    """A node waits for the job in another thread, for as long as the command follows it."""
    node = threading.Thread(target=work, args=(1, {"toys.safetensors": b"a lora"}), daemon=True)
    node.start()
    asked = ("train", str(pictures), "--model", "some/model", "--instance-prompt", "a sks toy", "--name", "toys")
    done = run(*asked, "--follow", "-o", str(tmp_path / "out"), "--json")
    node.join()
    assert done.status == 0, done.errors
    assert done.json["files"] == [str(tmp_path / "out" / "toys.safetensors")]
    assert (tmp_path / "out" / "toys.safetensors").read_bytes() == b"a lora"
    alone = run(*asked, "-o", str(tmp_path / "other"))
    assert alone.status == 2
    assert "add --follow" in alone.errors


def test_follow_fetches_the_results_of_a_job_that_was_done_already(run, submit, work, tmp_path):
    job = submit("dog")
    work(1, {"dog.safetensors": b"a lora", "README.md": b"a page"})
    done = run("follow", "dog", "-o", str(tmp_path / "out" / "deep"), "--json")
    assert done.status == 0
    assert (done.json["id"], done.json["state"]) == (job.id, "succeeded")
    record = f"provenance-{job.id}.json"
    assert sorted(Path(each).name for each in done.json["files"]) == ["README.md", "dog.safetensors", record]
    assert (tmp_path / "out" / "deep" / "dog.safetensors").read_bytes() == b"a lora"
    without = run("follow", "dog")
    assert f"download {job.id} -o dog-lora" in without.output


def test_the_model_card_carries_the_chain_of_the_signed_record(run, served, submit, work, tmp_path):
    job, out = submit("dog"), tmp_path / "out"
    work(1, {"dog.safetensors": b"a lora", "README.md": b"a page"})
    for _ in range(2):
        assert run("download", job.id, "-o", str(out)).status == 0
    record = f"provenance-{job.id}.json"
    assert sorted(file.name for file in out.iterdir()) == ["README.md", "dog.safetensors", record]
    card, content = (out / "README.md").read_text(), (out / record).read_bytes()
    signed = served.client(served.keys.admin).provenance(job.id)
    assert card.startswith("a page\n") and card.count("## Who made it") == 1
    for part in (job.id, record, hashlib.sha256(content).hexdigest(), signed.provenance.spec_sha256):
        assert part in card
    assert "No stretch of it was run again by another machine." in card
    verify = ("verify", str(out / record), "--public-key", signed.public_key)
    assert run(*verify, "--lora", str(out / "README.md"), "--lora", str(out / "dog.safetensors")).status == 0
    (out / "README.md").write_text("another page" + card.removeprefix("a page"))
    assert run(*verify, "--lora", str(out / "README.md")).status == 2
    assert run("download", job.id, "-o", str(out)).status == 0
    assert (out / "README.md").read_text().startswith("another page"), "a page that was edited is kept"


def test_no_result_of_another_job_is_overwritten_and_the_same_one_is_not_fetched_twice(run, submit, work, tmp_path):
    jobs = [submit("dog"), submit("dog")]
    for number, content in enumerate((b"one", b"two")):
        work(number, {"dog.safetensors": content})
    out = tmp_path / "out"
    for _ in range(2):
        for job in jobs:
            assert run("download", job.id, "-o", str(out)).status == 0
    apart = f"dog-{jobs[1].id[-6:]}.safetensors"
    assert {file.name: file.read_bytes() for file in out.iterdir()} == {"dog.safetensors": b"one", apart: b"two"}


def test_results_of_a_job_from_before_names_are_fetched_as_they_are_called(run, submit, work, tmp_path):
    submit("old")
    work(1, {"lora-kohya.safetensors": b"old"})
    assert run("download", "old", "-o", str(tmp_path / "out")).status == 0
    assert (tmp_path / "out" / "lora-kohya.safetensors").read_bytes() == b"old"


@pytest.mark.parametrize("command", [("follow", "dog"), ("download", "dog")])
def test_a_folder_that_cannot_take_files_is_refused_before_anything_is_fetched(run, submit, command, tmp_path):
    submit("dog")
    (tmp_path / "file").write_text("in the way")
    for place in ("file", "file/below"):
        done = run(*command, "-o", str(tmp_path / place))
        assert done.status == 2
        assert "is not a folder" in done.errors


def test_a_job_that_failed_is_followed_to_its_end_without_results(run, submit, served, tmp_path):
    job = submit("dog")
    served.client(served.keys.admin).cancel(job.id)
    done = run("follow", "dog", "-o", str(tmp_path / "out"))
    assert done.status == 1
    assert "canceled" in done.output
    assert not (tmp_path / "out").exists()


def a_checkpoint(step):
    """Of a job that has trained one layer."""
    layer = "unet.mid_block.attentions.0.transformer_blocks.0.attn1.to_q"
    tensors = {f"adapter.{layer}.lora_A.weight": torch.ones(4, 8), f"adapter.{layer}.lora_B.weight": torch.ones(8, 4)}
    spec = {**SPEC, "dataset": "ds_1", "seed": 5, "rank": 4, "alpha": 4.0}
    told = {"step": step, "spec": spec, "fingerprint": {}, "data_sha256": "d" * 64, "base_sha256": "b" * 64}
    return save(tensors, metadata={"giornata": json.dumps(told)})


def test_the_lora_of_a_step_is_made_from_its_checkpoint(run, submit, served, tmp_path):
    job = submit("dog", output_formats=["kohya"])
    out = tmp_path / "out"
    none = run("download", "dog@500", "-o", str(out))
    assert none.status == 1
    assert f"{job.id} has no checkpoint of step 500; there are: none yet" in none.errors
    assert "checkpoints_keep_every" in none.errors
    data = a_checkpoint(500)
    sha256 = hashlib.sha256(data).hexdigest()
    with httpx.Client(base_url=served.url) as http:
        node = NodeClient(http, node_key=served.keys.node)
        info = NodeInfo(node_id="node_00000009", machine_id="m-1", name="n-1")
        lease = node.claim(Claim(request_id="request-9", node=info, kinds=("train",), wait_s=30)).lease
        wanted = UploadRequest(files=(FileToUpload(sha256=sha256, size_bytes=len(data)),))
        (ticket,) = node.request_uploads(lease, wanted).items
        http.put(ticket.put.url, headers=ticket.put.headers, content=data).raise_for_status()
        commit = CommitCheckpoint(step=500, sha256=sha256, size_bytes=len(data), upload_id=ticket.upload_id)
        node.commit_checkpoint(lease, commit)
    other = run("download", f"{job.id}@400", "-o", str(out))
    assert f"{job.id} has no checkpoint of step 400; there are: 500" in other.errors
    done = run("download", "dog@500", "-o", str(out), "--json")
    assert done.status == 0, done.errors
    assert [Path(file).name for file in done.json["files"]] == [
        "dog-checkpoint-500.safetensors",
        "dog-000500.safetensors",
    ]
    assert all(Path(file).stat().st_size for file in done.json["files"])
