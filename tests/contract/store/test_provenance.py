"""The signed record of a job, from the server's database to a reader without a server."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.store_rig import StoreRig

from giornata.client.archives.provenance import verified_provenance
from giornata.control.attempts.commit import commit_artifact
from giornata.control.attempts.ending.complete import complete
from giornata.control.caller import Caller
from giornata.control.jobs.reading.provenance import provenance_key, read_provenance
from giornata.domain.errors import InvalidInput, NotFound
from giornata.protocol.node.work import CommitArtifact, CompleteAttempt
from giornata.protocol.project.admin import Scope

ANN = Caller(project_id="ann", scopes=Scope.MEMBER.reach, key_id="key_ann")
SPEC: dict[str, Any] = {"pretrained_model_name_or_path": "base", "dataset": "ds_none", "max_train_steps": 8}


@pytest.fixture
def job_id(rig: StoreRig) -> str:
    """A finished job of Ann's with two checkpoints."""
    rig.add_project("ann")
    job_id = rig.add_job(spec=SPEC, project_id="ann")
    lease = rig.lease(1)
    for step in (4, 8):
        rig.checkpoint(lease, step, project_id="ann")
    blob = rig.add_blob(b"the lora", project_id="ann")
    artifact = CommitArtifact(name="lora.safetensors", sha256=blob.sha256, size_bytes=blob.size_bytes)
    commit_artifact(rig.ctx, lease.attempt_id, artifact)
    told = {"data_sha256": "d" * 64, "base_sha256": "b" * 64}
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=8, artifacts=("lora.safetensors",), summary=told))
    return job_id


@pytest.fixture
def record(rig: StoreRig, job_id: str, tmp_path: Path) -> Path:
    path = tmp_path / "record.json"
    path.write_text(read_provenance(rig.ctx, ANN, job_id).model_dump_json(indent=2))
    return path


@pytest.fixture
def public_key(rig: StoreRig, job_id: str) -> str:
    assert job_id
    return provenance_key(rig.ctx, ANN).public_key


def test_the_record_names_spec_data_base_checkpoints_and_files_and_its_machines_by_pseudonym(
    rig: StoreRig, job_id: str
) -> None:
    found = read_provenance(rig.ctx, ANN, job_id).provenance
    assert [(each.step, each.attempt) for each in found.checkpoints] == [(4, 1), (8, 1)]
    assert found.checkpoints[0].sha256 == hashlib.sha256(f"{job_id} 4".encode()).hexdigest()
    assert {each.machine[:9] for each in found.checkpoints} == {"operator~"}
    spec = json.dumps(SPEC, sort_keys=True, separators=(",", ":")).encode()
    assert (found.spec_sha256, found.datasets) == (hashlib.sha256(spec).hexdigest(), {"dataset": "ds_none"})
    assert (found.data_sha256, found.base_sha256) == ("d" * 64, "b" * 64)
    assert [each.sha256 for each in found.files] == [hashlib.sha256(b"the lora").hexdigest()]


def test_a_record_is_verified_with_its_lora_file_and_the_servers_key(
    record: Path, public_key: str, job_id: str, tmp_path: Path
) -> None:
    lora = tmp_path / "renamed.safetensors"
    lora.write_bytes(b"the lora")
    assert verified_provenance(record, public_key=public_key, files=[lora]).job_id == job_id


def test_a_changed_record_and_another_file_are_refused_together(
    record: Path, public_key: str, tmp_path: Path
) -> None:
    told = json.loads(record.read_text())
    told["provenance"]["suspect"] = True
    record.write_text(json.dumps(told))
    lora = tmp_path / "lora.safetensors"
    lora.write_bytes(b"another lora")
    with pytest.raises(InvalidInput) as refusal:
        verified_provenance(record, public_key=public_key, files=[lora])
    assert [fault.where for fault in refusal.value.faults] == ["signature", str(lora)]


def test_a_record_of_another_server_is_refused(record: Path, public_key: str) -> None:
    other = ("A" if public_key[0] != "A" else "B") + public_key[1:]
    with pytest.raises(InvalidInput, match="is not signed by this key"):
        verified_provenance(record, public_key=other)


@pytest.mark.parametrize("key", ["", "short", "ä" * 43])
def test_a_key_that_is_none_is_refused(record: Path, key: str) -> None:
    with pytest.raises(InvalidInput, match="not an Ed25519 key"):
        verified_provenance(record, public_key=key)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"provenance": 5}', b"\xff", b'{"provenance": {}}'])
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, public_key: str, content: bytes) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="record"):
        verified_provenance(path, public_key=public_key)


def test_a_record_is_that_of_the_project_and_of_training_jobs_alone(rig: StoreRig, job_id: str) -> None:
    rig.add_project("bob")
    with pytest.raises(NotFound):
        read_provenance(rig.ctx, Caller(project_id="bob", scopes=ANN.scopes, key_id="key_bob"), job_id)
    other = rig.add_job(kind="x-count", project_id="ann")
    with pytest.raises(InvalidInput, match="of kind x-count"):
        read_provenance(rig.ctx, ANN, other)
