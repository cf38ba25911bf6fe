"""Bugs of orders, pictures and their leases, for `mutants`."""

from tests.contract.model.mutant import Mutant, Mutation

RESULTS = "store/pictures/picture_results.py"

PICTURE_MUTANTS = (
    Mutant(
        name="a picture is taken from a lease that never had it",
        patches=(
            Mutation(
                file=RESULTS,
                old="outcomes = [each for each in given.outcomes if each.key in had and each.key not in undrawn]",
                new="outcomes = [each for each in given.outcomes if each.key not in undrawn]",
            ),
            Mutation(
                file=RESULTS,
                old='        pictures.c.lease == sa.bindparam("new_lease"),\n        LEASED,\n    )\n    .values(',
                new="        LEASED,\n    )\n    .values(",
            ),
        ),
    ),
    Mutant(
        name="a picture gets a second result",
        patches=(
            Mutation(
                file=RESULTS,
                old="(attempts.outerjoin(pictures, sa.and_(pictures.c.lease == attempts.c.id, LEASED)))",
                new="(attempts.outerjoin(pictures, pictures.c.lease == attempts.c.id))",
            ),
            Mutation(
                file=RESULTS,
                old='        pictures.c.lease == sa.bindparam("new_lease"),\n        LEASED,\n    )\n    .values(',
                new='        pictures.c.lease == sa.bindparam("new_lease"),\n    )\n    .values(',
            ),
        ),
    ),
    Mutant(
        name="two results of an order have one place",
        patches=(Mutation(file=RESULTS, old="        connection.execute(_TAKE_PLACES, places)\n", new=""),),
    ),
    Mutant(
        name="pictures of a crash come again together",
        patches=(
            Mutation(
                file="domain/generation/picture.py",
                old="    return max(1, pictures // 2)\n",
                new="    return max(1, pictures)\n",
            ),
        ),
    ),
    Mutant(
        name="a picture that crashes alone is tried for ever",
        patches=(
            Mutation(
                file="control/pictures/failed_pictures.py",
                old="if row.tries >= policy.max_crashed_machines]",
                new="if False]",
            ),
        ),
    ),
    Mutant(
        name="a node that fell silent keeps its pictures",
        patches=(
            Mutation(
                file="control/attempts/ending/lapse.py",
                old="give_back_all(tx, ctx, attempt, Reason.LEASE_EXPIRED, message=SILENT, at_ms=now_ms)",
                new="pass",
            ),
        ),
    ),
    Mutant(
        name="an order that is canceled leaves its pictures in the queue",
        patches=(
            Mutation(
                file="control/jobs/stop_job.py",
                old="        tx.picture_orders.close_order(job.id)\n",
                new="        pass\n",
            ),
        ),
    ),
    Mutant(
        name="an order ends while nodes draw its last pictures",
        patches=(
            Mutation(
                file="control/pictures/settle_order.py",
                old="if any(counts.get(state) for state in OPEN):",
                new="if counts.get(PictureState.QUEUED):",
            ),
        ),
    ),
    Mutant(
        name="the first order of a lease pays for all",
        patches=(
            Mutation(
                file="control/pictures/lease.py",
                old="        work[each.order_id, each.project_id] += each.pixel_steps\n",
                new="        work[pictures[0].order_id, pictures[0].project_id] += each.pixel_steps\n",
            ),
        ),
    ),
    Mutant(
        name="orders pay for their pictures, however much work these are",
        patches=(
            Mutation(
                file="control/pictures/lease.py",
                old="        work[each.order_id, each.project_id] += each.pixel_steps\n",
                new="        work[each.order_id, each.project_id] += 1\n",
            ),
        ),
    ),
    Mutant(
        name="the collector takes pictures that were drawn",
        patches=(
            Mutation(
                file="store/garbage.py",
                old="set(self._connection.scalars(known)) - self._of_results(keys)",
                new="set(self._connection.scalars(known))",
            ),
        ),
    ),
)
