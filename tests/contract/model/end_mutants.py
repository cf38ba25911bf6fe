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
    Mutant(
        name="bytes go although a row came to name them since the look",
        way="threads",
        patches=(
            Mutation(
                file="control/end_of_life/remove_bytes.py",
                old=(
                    "        with ctx.store.begin() as tx:\n"
                    "            blobs = tx.deletions.take_blobs(project_id, sha256s=sha256s, "
                    "asked_before_ms=asked_before_ms)\n"
                    "        freed += _delete_each(ctx, blobs)\n"
                ),
                new=(
                    "        def take():\n"
                    "            with ctx.store.begin() as tx:\n"
                    "                yield tx.deletions.take_blobs(project_id, sha256s=sha256s, "
                    "asked_before_ms=asked_before_ms)\n"
                    "                raise LookupError\n\n"
                    "        try:\n"
                    "            for blobs in take():\n"
                    "                pass\n"
                    "        except LookupError:\n"
                    "            pass\n"
                    "        freed += _delete_each(ctx, blobs)\n"
                    "        with ctx.store.begin() as tx:\n"
                    "            tx.deletions.take_blobs(project_id, sha256s=sha256s, "
                    "asked_before_ms=asked_before_ms)\n"
                ),
            ),
        ),
    ),
    Mutant(
        name="retention deletes the checkpoints that it has read, pinned since or not",
        way="threads",
        patches=(
            Mutation(
                file="store/end_of_life/retention.py",
                old='        rows = self._connection.execute(statement, {**values, "most": limit}).all()\n',
                new=(
                    "        if kept is KeptClass.CHECKPOINTS:\n"
                    "            key = (checkpoints.c.job_id, checkpoints.c.step)\n"
                    "            query = sa.select(*key).where(_of_aged_jobs(CLASSES[kept]))\n"
                    "            read = self._connection.execute(query, values).all()\n"
                    "            these = sa.tuple_(*key).in_([tuple(row) for row in read])\n"
                    "            statement = sa.delete(checkpoints).where(these).returning(checkpoints.c.sha256)\n"
                    '        rows = self._connection.execute(statement, {**values, "most": limit}).all()\n'
                ),
            ),
        ),
    ),
    Mutant(
        name="a checkpoint is pinned while its job is being deleted, or its row pruned",
        way="threads",
        patches=(
            Mutation(
                file="store/end_of_life/pins.py",
                old="        if pin.step is not None and not self._lock_job(pin.target_id, project_id):\n",
                new="        if False:\n",
            ),
        ),
    ),
)
