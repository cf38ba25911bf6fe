"""Planted bugs of replay audits."""

from tests.contract.model.mutant import Mutant, Mutation

AUDIT_MUTANTS = (
    Mutant(
        name="a tenant is billed for an audit",
        patches=(
            Mutation(
                file="control/attempts/auditing/draw_audit.py",
                old="        billed_to=ROOT_PROJECT,\n",
                new="        billed_to=None,\n",
            ),
        ),
    ),
    Mutant(
        name="an audit goes before a job that waits",
        patches=(
            Mutation(
                file="store/jobs/claiming.py",
                old='sa.literal_column("-1")',
                new='sa.literal_column("1")',
            ),
        ),
    ),
    Mutant(
        name="one machine's word is enough against another",
        patches=(
            Mutation(
                file="control/attempts/auditing/settle_audits.py",
                old="    first = _first_result(tx, audit)\n",
                new="    first = _first_result(tx, audit) or result\n",
            ),
        ),
    ),
    Mutant(
        name="nothing holds the checkpoint that an audit begins with",
        patches=(
            Mutation(
                file="control/attempts/auditing/draw_audit.py",
                old="        if isinstance(sha256, str):\n",
                new="        if False:\n",
            ),
        ),
    ),
    Mutant(
        name="a refuted job goes back to what nobody has confirmed",
        patches=(
            Mutation(
                file="control/attempts/auditing/refute_machine.py",
                old="each.state is AuditState.CONFIRMED and each.sha256",
                new="each.sha256",
            ),
        ),
    ),
    Mutant(
        name="a retry goes on from what the job before it lost to an audit",
        patches=(
            Mutation(
                file="control/attempts/auditing/follow_doubt.py",
                old="    left = list(doubted)\n",
                new="    left: list[DoubtedJob] = []\n",
            ),
        ),
    ),
)
