"""Two jobs in one batch of the real engine, on the tiny model: the engine is killed in the middle of both."""

from typing import Any

import pytest
from tests.system.conftest import until
from tests.system.faults.real_jobs import NODE, PATIENCE_S, real_spec
from tests.system.faults.rig import Rig
from tests.system.faults.setup import PATIENT

from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.jobs import Job

GROUND = PATIENT
STEPS, CADENCE = 150, 5
QUICK_TO_ASK = NODE | {"companion_every_s": 0.2}


@pytest.fixture(scope="module")
def spec(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return real_spec(rig, tmp_path_factory, max_train_steps=STEPS, checkpointing_steps=CADENCE)


def in_one_batch(rig: Rig, job_ids: list[str]) -> list[Job] | None:
    """The jobs, when all train in one process and have checkpoints that were written since."""
    jobs = [rig.client.get_job(job_id) for job_id in job_ids]
    if any(job.state is not JobState.RUNNING or job.committed_step < CADENCE for job in jobs):
        return None
    assert len({job.attempts[-1].node_id for job in jobs}) == 1
    return jobs


def done(rig: Rig, job_id: str) -> Job:
    job = rig.client.wait(job_id, timeout_s=PATIENCE_S, poll_s=0.2)
    assert job.state is JobState.SUCCEEDED, rig.story(job_id)
    assert job.step == STEPS
    return job


def shared(job: Job) -> list[bool]:
    """Of each stretch of the job's steps, whether it was made in a shared batch."""
    return ["joint" in stretch["fingerprint"] for stretch in job.result["fingerprints"]]


def test_jobs_whose_engine_is_killed_under_them_go_on_alone(rig: Rig, spec: dict[str, Any]) -> None:
    """Each has a rank, a rate and a number of steps before a checkpoint of its own; all other things are alike."""
    rig.start_node(places=2, **QUICK_TO_ASK)
    own = ({"rank": 2, "learning_rate": 1e-3, "seed": 1}, {"rank": 7, "learning_rate": 1e-4, "seed": 2})
    ids = [rig.client.submit({**spec, **each}).id for each in own]
    until(lambda: in_one_batch(rig, ids), lambda: "\n".join(map(rig.story, ids)), PATIENCE_S)
    rig.node.kill_engine()
    jobs = [done(rig, job_id) for job_id in ids]

    for job in jobs:
        first, second = job.attempts
        assert first.reason is Reason.CRASHED
        assert second.start_step >= CADENCE, "it did not begin anew"
        assert second.node_id == first.node_id, "nobody is banned for what another may have done"
        *together, alone = shared(job)
        assert all(together)
        assert together
        assert not alone
        assert job.result["exactness"]["class"] == "joint"
    one, other = sorted((job.attempts[1] for job in jobs), key=lambda attempt: attempt.started_at)
    assert one.ended_at is not None
    assert one.ended_at <= other.started_at, "one after the other"


def test_jobs_that_share_a_batch_end_in_one_engine(rig: Rig, spec: dict[str, Any]) -> None:
    """Nothing happens to them; and what they have in common is paid for once."""
    if not rig.nodes:
        rig.start_node(places=2, **QUICK_TO_ASK)
    engine = rig.node.engine_pid()
    short = {**spec, "max_train_steps": 60, "learning_rate": 1e-4}
    ids = [rig.client.submit({**short, "seed": seed}).id for seed in (1, 2)]
    jobs = [rig.client.wait(job_id, timeout_s=PATIENCE_S, poll_s=0.2) for job_id in ids]
    assert rig.node.engine_pid() == engine
    for job in jobs:
        assert job.state is JobState.SUCCEEDED, rig.story(job.id)
        assert len(job.attempts) == 1
        assert all(shared(job))
    one, other = sorted((job.attempts[0] for job in jobs), key=lambda attempt: attempt.started_at)
    assert one.ended_at is not None
    assert other.started_at < one.ended_at, "both were there at one time"
    widths = {stretch["fingerprint"]["joint"]["width"] for job in jobs for stretch in job.result["fingerprints"]}
    assert 2 in widths


def test_the_cancel_of_one_is_nothing_to_the_other(rig: Rig, spec: dict[str, Any]) -> None:
    if not rig.nodes:
        rig.start_node(places=2, **QUICK_TO_ASK)
    engine = rig.node.engine_pid()
    ids = [
        rig.client.submit({**spec, "learning_rate": 1e-4, "seed": seed, "max_train_steps": steps}).id
        for seed, steps in ((1, 100_000), (2, STEPS))
    ]
    until(lambda: in_one_batch(rig, ids), lambda: "\n".join(map(rig.story, ids)), PATIENCE_S)
    assert rig.client.cancel(ids[0]).state is JobState.CANCELED
    other = done(rig, ids[1])
    assert len(other.attempts) == 1
    assert rig.node.engine_pid() == engine
    widths = [stretch["fingerprint"]["joint"]["width"] for stretch in other.result["fingerprints"]]
    assert widths[-2:] == [2, 1], "it went on alone, in the same engine"
