"""Planted bugs of deletion and retention."""

from tests.contract.model.mutant import Mutant, Mutation

END_MUTANTS = (
    Mutant(
        name="retention takes the checkpoint that a queued job resumes from",
        patches=(
            Mutation(
                file="store/end_of_life/retention.py",
                old="jobs.c.state.in_(sorted(TERMINAL)) & (jobs.c.ended_at_ms < BEFORE)",
                new="(jobs.c.created_at_ms < BEFORE)",
            ),
        ),
    ),
    Mutant(
        name="retention takes what is pinned",
        patches=(
            Mutation(
                file="store/end_of_life/retention.py",
                old="HAS_ENDED & ~jobs.c.pinned & jobs",
                new="HAS_ENDED & jobs",
            ),
        ),
    ),
    Mutant(
        name="a later checkpoint takes a pinned one",
        patches=(
            Mutation(
                file="control/attempts/commit.py",
                old="row.step not in kept and not row.pinned]",
                new="row.step not in kept]",
            ),
        ),
    ),
    Mutant(
        name="bytes of a deleted job go although others name them",
        patches=(
            Mutation(
                file="store/end_of_life/deletions.py",
                old="locked = sa.select(blobs.c.key).where(named, unreferenced())",
                new="locked = sa.select(blobs.c.key).where(named)",
            ),
            Mutation(
                file="store/end_of_life/deletions.py",
                old="        # Asked again, as the collector does: the rows are locked now.\n",
                new="        return [TakenBlob(key=key, size_bytes=0) for key in found]\n",
            ),
        ),
    ),
    Mutant(
        name="retention takes pictures of an order that goes on",
        patches=(
            Mutation(
                file="store/end_of_life/retention.py",
                old="of.job_id.in_(sa.select(jobs.c.id).where(MAY_LOSE)) & of.may_go",
                new=(
                    "of.may_go if of.table is pictures else of.job_id.in_(sa.select(jobs.c.id).where(MAY_LOSE)) "
                    "& of.may_go"
                ),
            ),
        ),
    ),
    Mutant(
        name="a deleted order leaves the bytes of its pictures",
        patches=(
            Mutation(
                file="store/end_of_life/rows_of_jobs.py",
                old="    return TakenRows(rows=len(found), objects=picture_objects(found))\n",
                new="    return TakenRows(rows=len(found))\n",
            ),
        ),
    ),
    Mutant(
        name="a dataset is deleted although jobs use it",
        patches=(
            Mutation(
                file="control/end_of_life/delete_dataset.py",
                old="        _refuse_used(tx, dataset_id, project_id)\n",
                new="",
            ),
        ),
    ),
)
