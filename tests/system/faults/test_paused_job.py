"""The real engine, on the tiny model: a job that stood still for want of money ends with the same bytes."""

from typing import Any

import pytest
from tests.system.conftest import until
from tests.system.faults.real_jobs import NODE, PATIENCE_S, real_spec
from tests.system.faults.rig import Rig

from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.jobs import Job

STEPS, CADENCE = 400, 10
PER_S = 20_000  # micro-dollars; a node may cost 100 dollars an hour
PLENTY = 10**12


@pytest.fixture(scope="module")
def spec(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    rig.start_node(price_micro_usd_per_hour=3600 * PER_S, **NODE)
    return real_spec(rig, tmp_path_factory, rank=2, max_train_steps=STEPS, checkpointing_steps=CADENCE, seed=42)


def done(rig: Rig, job_id: str) -> tuple[Job, str]:
    """The job, and the sha256 of what the user gets."""
    job = rig.client.wait(job_id, timeout_s=PATIENCE_S, poll_s=0.2)
    assert job.state is JobState.SUCCEEDED, rig.story(job_id)
    return job, next(each.sha256 for each in rig.client.artifacts(job_id) if each.name.endswith(".safetensors"))


def paused_on_its_way(rig: Rig, spec: dict[str, Any]) -> Job:
    """A job whose money turns out to be used up after its first checkpoint."""
    job_id = rig.client.submit(spec, budget_micro_usd=PLENTY).id

    def has_checkpoint() -> Job | None:
        job = rig.client.get_job(job_id)
        return job if job.committed_step >= CADENCE else None

    begun = until(has_checkpoint, lambda: rig.story(job_id), PATIENCE_S)
    rig.client.set_job_budget(job_id, max(1, begun.cost_micro_usd))

    def stands() -> Job | None:
        job = rig.client.get_job(job_id)
        return None if job.state is JobState.RUNNING else job

    return until(stands, lambda: rig.story(job_id), PATIENCE_S)


def test_a_job_that_was_paused_ends_with_the_bytes_of_one_that_was_not(rig: Rig, spec: dict[str, Any]) -> None:
    never_paused, undisturbed = done(rig, rig.client.submit(spec).id)
    assert len(never_paused.attempts) == 1
    paused = paused_on_its_way(rig, spec)
    assert paused.state is JobState.PAUSED, rig.story(paused.id)
    assert [each.reason for each in paused.attempts] == [Reason.OVER_BUDGET]
    assert CADENCE <= paused.committed_step < STEPS
    spent = paused.cost_micro_usd

    rig.client.set_job_budget(paused.id, PLENTY)
    job, weights = done(rig, paused.id)
    assert weights == undisturbed
    assert [each.start_step for each in job.attempts] == [0, paused.committed_step], "it went on where it stood"
    assert job.cost_micro_usd > spent
