"""Planted bugs of sweeps."""

from tests.contract.model.mutant import Mutant, Mutation

SWEEP_MUTANTS = (
    Mutant(
        name="a sweep that is canceled leaves its jobs in the queue",
        patches=(
            Mutation(
                file="control/jobs/stop_job.py",
                old="    if job.kind == SWEEP_KIND:\n",
                new="    if False:\n",
            ),
        ),
    ),
    Mutant(
        name="a deleted sweep leaves its jobs",
        patches=(
            Mutation(
                file="control/end_of_life/delete_job.py",
                old="swept = [_locked(tx, each) for each in tx.deletions.swept_by(job_id)]",
                new="swept: list[JobRow] = []",
            ),
        ),
    ),
    Mutant(
        name="jobs of a sweep begin together while nobody knows their cost",
        patches=(
            Mutation(
                file="domain/jobs/sweep.py",
                old="            room, alone = room - (still or 0), False\n",
                new="            room -= still or 0\n",
            ),
        ),
    ),
    Mutant(
        name="each job of a sweep has all the room of the budget",
        patches=(
            Mutation(
                file="domain/jobs/sweep.py",
                old="            room, alone = room - (still or 0), False\n",
                new="            alone = False\n",
            ),
        ),
    ),
    Mutant(
        name="a budget of its own lets a job of a sweep go",
        patches=(
            Mutation(
                file="control/projects/set_budget.py",
                old="    if job.state is JobState.PAUSED and _waits_for_sweep(tx, job):\n",
                new="    if False:\n",
            ),
        ),
    ),
)
