"""Replay audits through a real server, real agents and the real training engine, one of which lies."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.system.conftest import Up, until
from tests.system.faults.rig import SCRIPTS

from giornata.client import Client
from giornata.domain.jobs.audits import AuditState
from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.project.admin import Scope
from giornata.protocol.provenance import Provenance

MACHINES = ("liar", "sound-1", "sound-2")
# A fleet each: the machine that decides shares a fleet with none of the two whose results differ.
FLEETS = {f"of-{name}": {"driver": "static", "audit_share": 1.0} for name in MACHINES}
FIRST_STEP, STEPS = 2, 4
PROMPT = "a photo of a sks shape"
PATIENCE_S = 300.0  # three engines load torch, and the loop of audits has four turns


@contextmanager
def running_node(up: Up, machine: str, **more: Any) -> Iterator[None]:
    """A node on this machine of its own fleet, until the end of the block."""
    given = {
        "url": up.url,
        "key": up.client.create_key(scope=Scope.NODE).secret,
        "machine_id": machine,
        "name": machine,
        "fleet": f"of-{machine}",
        "work_dir": str(up.data.parent / machine),
        "kinds": ["train"],
        "workloads": {},
        "device": "cpu",
        "claim_wait_s": 1.0,
        **more,
    }
    log = up.data.parent / f"{machine}.log"
    with log.open("wb") as file:
        command = [sys.executable, str(SCRIPTS / "node.py"), json.dumps(given)]
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.fixture
def up(start_up: Callable[..., Up]) -> Up:
    """A server that audits every stretch of machines without a sound audit."""
    return start_up("--nodes", "0", GIORNATA_FLEETS=json.dumps(FLEETS))


@pytest.fixture
def spec(up: Up, tmp_path: Path) -> dict[str, Any]:
    """A job of two stretches."""
    # Here: a process that runs other tests need not load torch.
    from giornata.diffusion.tiny.tiny_model import build_tiny_model

    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(2):
        picture = Image.effect_mandelbrot((64, 64), (-2, -1.5, 1, 1.5), 10 + number).convert("RGB")
        picture.save(folder / f"{number}.png")
    return {
        "pretrained_model_name_or_path": str(build_tiny_model(tmp_path / "tiny")),
        "dataset": up.client.dataset_from_folder(folder, instance_prompt=PROMPT).id,
        "instance_prompt": PROMPT,
        "resolution": 64,
        "mixed_precision": "no",
        "max_train_steps": STEPS,
        "checkpointing_steps": FIRST_STEP,
    }


@pytest.mark.long
def test_a_lying_machine_is_refuted_by_two_others_and_its_job_is_trained_again_and_confirmed(
    up: Up, spec: dict[str, Any]
) -> None:
    client = up.client
    with running_node(up, "liar", engine=[sys.executable, str(SCRIPTS / "lying_engine.py")]):
        job = client.submit(spec)
        until(lambda: client.get_job(job.id).committed_step == FIRST_STEP, "the liar's checkpoint", PATIENCE_S)
        with running_node(up, "sound-1"), running_node(up, "sound-2"):
            assert client.wait(job.id, timeout_s=PATIENCE_S, poll_s=0.2).state is JobState.SUCCEEDED
            record = until(lambda: all_audited(client, job.id), "the audits of the sound machine", PATIENCE_S)

    refuted, *sound = sorted(record.audits, key=lambda audit: audit.state is AuditState.CONFIRMED)
    assert (refuted.state, refuted.from_step, refuted.to_step) == (AuditState.REFUTED, 0, FIRST_STEP)
    assert len(refuted.repeated_by) == len({*refuted.repeated_by, refuted.machine}) - 1 == 2
    assert {(audit.from_step, audit.to_step) for audit in sound} >= {(0, FIRST_STEP)}
    assert all(audit.machine in refuted.repeated_by for audit in sound)
    assert {audit.state for audit in sound} == {AuditState.CONFIRMED}
    assert not record.suspect
    kept = {checkpoint.step: checkpoint for checkpoint in record.checkpoints if checkpoint.attempt == 2}
    assert kept[FIRST_STEP].machine in refuted.repeated_by
    assert kept[FIRST_STEP].sha256 != refuted.sha256

    lost, done = client.get_job(job.id).attempts
    assert (lost.machine_id, lost.reason) == ("liar", Reason.AUDIT_MISMATCH)
    assert (done.start_step, done.machine_id in {"sound-1", "sound-2"}) == (0, True)
    machines = {machine.machine_id: machine for machine in client.machines()}
    assert machines["liar"].state == "quarantined"
    assert "audit_mismatch" in machines["liar"].reason
    assert job.id in machines["liar"].reason
    assert [name for name, machine in machines.items() if machine.state == "quarantined"] == ["liar"]
    back = [event.data for event in client.events(job.id) if event.data.get("name") == "taken-back"]
    assert [(each["step"], each["machine_ids"]) for each in back] == [(0, ["liar"])]


def all_audited(client: Client, job_id: str) -> Provenance | None:
    """The record of the job, once each of its audits is decided and some stretch is confirmed."""
    record = client.provenance(job_id).provenance
    states = {audit.state for audit in record.audits}
    decided = not states & {AuditState.OPEN, AuditState.CONTESTED}
    return record if decided and AuditState.CONFIRMED in states else None
