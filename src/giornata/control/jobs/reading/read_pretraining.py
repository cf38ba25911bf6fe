"""Read how a pre-training job goes on: its losses by noise, its rates, and what is left."""

from itertools import accumulate

from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.reading.job_outputs import read_metrics
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.domain.errors import NotFound
from giornata.domain.jobs.pretraining_progress import PhaseProgress, PretrainingProgress, pretraining_progress
from giornata.protocol.jobs import Job
from giornata.protocol.specs import PRETRAIN_KIND, PretrainSpec

LATEST_STEPS = 100


def read_pretraining(ctx: Context, caller: Caller, job_id: str) -> PretrainingProgress:
    """Return the progress of a pre-training job, by its latest LATEST_STEPS steps.

    Raises Forbidden, NotFound, also for a job of another kind.
    """
    job = get_job(ctx, caller, job_id)
    phases = _phases(job)
    page = read_metrics(ctx, caller, job_id, max(-1, job.step - LATEST_STEPS), LATEST_STEPS)
    return pretraining_progress([each.values for each in page.items], phases)


def read_phases(ctx: Context, caller: Caller, job_id: str) -> tuple[PhaseProgress, ...]:
    """Return the phases of a pre-training job. Raises Forbidden, NotFound, also for a job of another kind."""
    return _phases(get_job(ctx, caller, job_id))


def _phases(job: Job) -> tuple[PhaseProgress, ...]:
    if job.kind != PRETRAIN_KIND:
        raise NotFound("this job is not a pre-training job")
    config = PretrainSpec.model_validate(job.spec).config
    batch = config.train.global_batch_size
    last_steps = accumulate(-(-each.samples // batch) for each in config.phases)
    return tuple(
        PhaseProgress(name=each.name, resolution=each.resolution, samples=each.samples, last_step=last_step)
        for each, last_step in zip(config.phases, last_steps, strict=True)
    )
