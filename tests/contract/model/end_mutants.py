"""Planted bugs of deletion and retention."""

from tests.contract.model.mutant import Mutant, Patch

END_MUTANTS = (
    Mutant(
        name="retention takes the checkpoint that a queued job resumes from",
        patches=(
            Patch(
                file="store/end_of_life/retention.py",
                old="jobs.c.state.in_(sorted(TERMINAL)) & (jobs.c.ended_at_ms < BEFORE)",
                new="(jobs.c.created_at_ms < BEFORE)",
            ),
        ),
    ),
    Mutant(
        name="a dataset is deleted although jobs use it",
        patches=(
            Patch(
                file="control/end_of_life/delete_dataset.py",
                old="        _refuse_used(tx, dataset_id, project_id)\n",
                new="",
            ),
        ),
    ),
)
