"""The real engine, on the tiny model: killed where it hurts most, and the LoRA is the same bytes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.chaos_proxy import Trap
from tests.system.faults.preloaded import library
from tests.system.faults.real_jobs import NODE, PATIENCE_S, real_spec
from tests.system.faults.rig import Rig

from giornata.domain.jobs.job import JobState

COMMIT = ("POST", "^/v1/node/attempts/[^/]+/checkpoints$")
STEPS, CADENCE = 12, 4


@pytest.fixture(scope="module")
def spec(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return real_spec(rig, tmp_path_factory, rank=2, max_train_steps=STEPS, checkpointing_steps=CADENCE, seed=42)


def lora(rig: Rig, job_id: str) -> str:
    """The sha256 of what the user gets."""
    job = rig.client.wait(job_id, timeout_s=PATIENCE_S, poll_s=0.2)
    assert job.state is JobState.SUCCEEDED, rig.story(job_id)
    return next(each.sha256 for each in rig.client.artifacts(job_id) if each.name.endswith(".safetensors"))


@pytest.fixture(scope="module")
def undisturbed(rig: Rig, spec: dict[str, Any]) -> str:
    """What the user gets when nothing goes wrong, by a node that still runs then."""
    rig.start_node(**NODE)
    return lora(rig, rig.client.submit(spec).id)


@pytest.fixture(scope="module")
def other_order(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library by which directories list their files the other way round, as it is proven here."""
    built = library(tmp_path_factory.mktemp("order"), "other_order")
    ask = [sys.executable, "-c", f"import os; print(*os.listdir({str(Path(__file__).parent)!r}))"]
    usual = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.split()
    turned = subprocess.run(
        ask, check=True, capture_output=True, text=True, env={**os.environ, "LD_PRELOAD": str(built)}
    ).stdout.split()
    assert turned == usual[::-1] != usual
    return built


def kill_after_a_commit(rig: Rig, job_id: str, trap: Trap) -> None:
    """The node dies when the server knows of its checkpoint, and it does not."""
    assert trap.answered.wait(PATIENCE_S), rig.story(job_id)
    assert trap.statuses == [200]
    rig.node.kill_all()
    trap.release(cut=True)


def assert_it_went_on(rig: Rig, job_id: str) -> None:
    attempts = rig.client.get_job(job_id).attempts
    assert len(attempts) > 1
    assert attempts[-1].start_step in {CADENCE, 2 * CADENCE, STEPS}, "it did not begin anew"


def test_a_node_that_is_killed_between_commit_and_acknowledgment_costs_no_seam(rig, spec, undisturbed):
    trap = rig.control.set(Trap(*COMMIT, hold_reply=True))
    job_id = rig.client.submit(spec).id
    kill_after_a_commit(rig, job_id, trap)
    rig.start_node(work_dir=rig.node.work_dir, **NODE)
    assert lora(rig, job_id) == undisturbed
    assert_it_went_on(rig, job_id)


def test_nodes_that_differ_in_all_that_should_not_matter(rig, spec, undisturbed, other_order, tmp_path):
    """A job begun where files, language and time are other ones, and finished elsewhere, where they are others still.

    The second node's temporary files are wiped under it as well.
    """
    rig.node.end()
    trap = rig.control.set(Trap(*COMMIT, hold_reply=True))
    turkish = {"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8", "TZ": "America/St_Johns"}
    rig.start_node(environment={"LD_PRELOAD": str(other_order), **turkish}, **NODE)
    job_id = rig.client.submit(spec).id
    kill_after_a_commit(rig, job_id, trap)
    next_commit = rig.control.set(Trap(*COMMIT, hold_reply=True))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TZ": "Pacific/Kiritimati"}
    rig.start_node(environment={**plain, "TMPDIR": str(temporary)}, **NODE)
    assert next_commit.answered.wait(PATIENCE_S), rig.story(job_id)
    shutil.rmtree(temporary)
    next_commit.release()
    assert lora(rig, job_id) == undisturbed
    assert_it_went_on(rig, job_id)
