"""Plants one bug after the other into a copy of the source and shows that the model finds each: `make mutants`.

A patch is an exact piece of text and what stands there instead; one that the source no longer contains fails loudly.
The source as it is has to pass the very same schedules.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.contract.model.audit_mutants import AUDIT_MUTANTS
from tests.contract.model.end_mutants import END_MUTANTS
from tests.contract.model.mutant import Mutant, Mutation
from tests.contract.model.order_kind_mutants import ORDER_KIND_MUTANTS
from tests.contract.model.picture_mutants import PICTURE_MUTANTS
from tests.contract.model.sweep_mutants import SWEEP_MUTANTS

ROOT = Path(__file__).parents[3]


MUTANTS = (
    Mutant(
        name="drop the fencing predicate",
        patches=(
            Mutation(
                file="control/storage/fence.py",
                old="    if attempt.ended_at_ms is not None:\n",
                new="    if False:\n",
            ),
            Mutation(
                file="store/jobs/attempts.py",
                old='        .where(attempts.c.id == sa.bindparam("wanted"), LIVE)\n        .values(',
                new='        .where(attempts.c.id == sa.bindparam("wanted"))\n        .values(',
            ),
            Mutation(
                file="store/jobs/attempts.py", old=", attempts, rows, ended_at_ms=None)", new=", attempts, rows)"
            ),
        ),
    ),
    Mutant(
        name="drop the fence before a write, keep the predicate in it",
        patches=(
            Mutation(
                file="control/storage/fence.py",
                old="    if attempt.ended_at_ms is not None:\n",
                new="    if False:\n",
            ),
        ),
    ),
    Mutant(
        name="ban not in the claim",
        patches=(
            Mutation(
                file="store/jobs/claiming.py",
                old="return [for_machine(machine_id), ~banned, ",
                new="return [for_machine(machine_id), ",
            ),
        ),
    ),
    Mutant(
        name="a claim forgets the ceilings of projects",
        patches=(
            Mutation(
                file="control/quotas/ceilings.py",
                old="    limits = ceilings(tx, ctx, at_ms=at_ms)\n    running = tx.quotas.running() if",
                new="    limits: Mapping[str, int] = {}\n    running = tx.quotas.running() if",
            ),
        ),
    ),
    Mutant(
        name="a node may hold any number of leases",
        patches=(
            Mutation(
                file="control/attempts/claiming/claim.py",
                old="before.leases >= most_leases(places) else None",
                new="before.leases < 0 else None",
            ),
        ),
    ),
    Mutant(
        name="a quarantined machine gets work",
        patches=(
            Mutation(
                file="domain/jobs/admission.py",
                old="    if health.state is MachineState.QUARANTINED:\n",
                new="    if False:\n",
            ),
        ),
    ),
    Mutant(
        name="a job is shown before the step that is safe",
        patches=(
            Mutation(
                file="control/attempts/commit.py",
                old="committed_step=safe, step=max(job.step, safe), **fruit",
                new="committed_step=safe, **fruit",
            ),
        ),
    ),
    Mutant(
        name="a bad job is held against machines",
        patches=(
            Mutation(
                file="control/attempts/ending/judge_machines.py",
                old="    if job_failed and not canary:\n",
                new="    if False:\n",
            ),
        ),
    ),
    Mutant(
        name="delete N before N+1 is in",
        patches=(
            Mutation(
                file="control/attempts/commit.py",
                old='for the step.\n    """\n    project_id = project_of_live_attempt(ctx, attempt_id)\n',
                new=(
                    'for the step.\n    """\n    project_id = project_of_live_attempt(ctx, attempt_id)\n'
                    "    with ctx.store.begin() as tx:\n"
                    "        job, _ = live_at_job(tx, attempt_id)\n"
                    "        older = [row.step for row in tx.checkpoints.usable(job.id) if row.step < commit.step]\n"
                    "        tx.checkpoints.delete(job.id, older[KEEP_LATEST - 1 :])\n"
                ),
            ),
        ),
    ),
    Mutant(
        name="two transactions for event and change",
        patches=(
            Mutation(
                file="control/attempts/commit.py",
                old=(
                    "    tx.events.add(job.id, job.project_id, EventType.CHECKPOINT_COMMITTED, attempt.number, data,"
                    " at_ms)\n"
                ),
                new="",
            ),
            Mutation(
                file="control/attempts/commit.py",
                old=(
                    "            tx.checkpoints.delete(job.id, old)\n"
                    "        return Committed(sha256=commit.sha256, size_bytes=commit.size_bytes)\n"
                ),
                new=(
                    "            tx.checkpoints.delete(job.id, old)\n"
                    '    data = {"step": commit.step, "size_bytes": commit.size_bytes, "sha256": commit.sha256}\n'
                    "    with ctx.store.begin() as tx:\n"
                    "        kind = EventType.CHECKPOINT_COMMITTED\n"
                    "        tx.events.add(job.id, job.project_id, kind, attempt.number, data, now_ms)\n"
                    "    return Committed(sha256=commit.sha256, size_bytes=commit.size_bytes)\n"
                ),
            ),
        ),
    ),
    Mutant(
        name="whoever waits for the next month waits for ever",
        patches=(
            Mutation(
                file="store/money/budgets.py",
                old="_FOR_PROJECT = jobs.c.paused_by.in_((Payer.PROJECT, Payer.MONTH))",
                new="_FOR_PROJECT = jobs.c.paused_by == Payer.PROJECT",
            ),
        ),
    ),
    Mutant(
        name="terminal state overwritten",
        patches=(
            Mutation(
                file="control/jobs/stop_job.py",
                old="    state = tx.jobs.change(job, event, ended_at_ms=at_ms, paused_by=None)\n",
                new=(
                    "    state = JobState(_TYPES[event].removeprefix('job.'))\n"
                    "    tx.jobs.update(job.id, state=state, ended_at_ms=at_ms, paused_by=None)\n"
                ),
            ),
        ),
    ),
    Mutant(
        name="a strike for a node that was preempted",
        patches=(
            Mutation(
                file="control/attempts/ending/reported_ends.py",
                old="        return AttemptEnded(job_state=settle(tx, job, attempt, now_ms))\n",
                new=(
                    "        if isinstance(report, ReleaseAttempt):\n"
                    "            tx.bans.strike(attempt, report.reason, at_ms=now_ms)\n"
                    "        return AttemptEnded(job_state=settle(tx, job, attempt, now_ms))\n"
                ),
            ),
        ),
    ),
    Mutant(
        name="the silence of a node is billed",
        patches=(
            Mutation(
                file="control/attempts/ending/lapse.py",
                old="    tx.ledger.extend_each([attempt.id], to_ms=attempt.renewed_at_ms)",
                new="    tx.ledger.extend_each([attempt.id], to_ms=at_ms)",
            ),
        ),
    ),
    Mutant(
        name="a node that says that a checkpoint is spoiled is believed",
        patches=(
            Mutation(
                file="control/storage/look_at_bytes.py",
                old="    wrong = wrong or _wrong_bytes(ctx, standing.key, sha256)\n",
                new='    wrong = wrong or "the node says so"\n',
            ),
        ),
    ),
    Mutant(
        name="lost bytes are not asked for again",
        patches=(
            Mutation(
                file="store/jobs/uploads.py",
                old="                    key=sa.case((THERE, blobs.c.key), else_=blob.key),\n",
                new="",
            ),
        ),
    ),
    Mutant(
        name="a claim for a companion gets any job",
        patches=(
            Mutation(
                file="store/jobs/claiming.py",
                old="return [] if joint_key is None else [jobs.c.joint_key == joint_key]",
                new="return []",
            ),
        ),
    ),
    Mutant(
        name="of those that crashed together each is to blame",
        patches=(
            Mutation(
                file="control/attempts/ending/reported_ends.py",
                old="for each in [attempt, *there]}) if there else None",
                new="for each in [attempt, *there]}) if False else None",
            ),
        ),
    ),
    Mutant(
        name="a job that crashed in company may do so again",
        patches=(
            Mutation(file="control/attempts/ending/requeue.py", old='        columns["joint_key"] = None\n', new=""),
        ),
    ),
    Mutant(
        name="each of several attempts pays the whole node",
        patches=(
            Mutation(
                file="store/money/ledger.py",
                old=" OTHER.c.id != attempts.c.id,",
                new=" sa.false(),",
            ),
        ),
    ),
    Mutant(
        name="a node that does not obey an order goes on for ever",
        patches=(
            Mutation(
                file="control/attempts/ending/enforce_budgets.py",
                old="    late = [attempt.id for attempt in attempts if _is_late(ctx, attempt)]\n",
                new="    late: list[str] = []\n",
            ),
        ),
    ),
    Mutant(
        name="a slow machine that was told to let a job go may have it again",
        patches=(
            Mutation(
                file="control/attempts/ending/reported_ends.py",
                old="    if BAN[Reason.TOO_SLOW]:\n",
                new="    if False:\n",
            ),
        ),
    ),
    Mutant(
        name="a ban is never lifted",
        patches=(
            Mutation(
                file="control/attempts/ending/lift_bans.py",
                old="    return due[:AT_MOST]\n",
                new="    return due[:0]\n",
            ),
        ),
    ),
    Mutant(
        name="the pause before a job goes back never ends",
        patches=(
            Mutation(
                file="domain/jobs/backoff.py",
                old="else latest_ms + round(wait_s * 1000)\n",
                new="else now_ms + round(wait_s * 1000)\n",
            ),
        ),
    ),
    Mutant(
        name="a ban is lifted although another machine could take the job",
        patches=(
            Mutation(
                file="domain/jobs/backoff.py",
                old="    if any(host.machine_id not in banned and",
                new="    if any(not banned and",
            ),
            Mutation(
                file="domain/jobs/backoff.py",
                old="(ends := host.quarantines[kind])",
                new="(ends := host.quarantines.get(kind))",  # other machines of it are not in quarantine
            ),
        ),
    ),
    Mutant(
        name="crashes on one machine never end a job",
        patches=(
            Mutation(
                file="control/attempts/ending/requeue.py",
                old="        crashes=len(crashes),\n",
                new="        crashes=len({each.machine_id for each in crashes}),\n",
            ),
        ),
    ),
    Mutant(
        name="a failure that is reported twice counts twice",
        patches=(
            Mutation(
                file="control/attempts/ending/reported_ends.py",
                old=(
                    "        if attempt.ended_at_ms is not None and attempt.reason in {report.reason, "
                    "_ordered(attempt, report)}:\n"
                    "            return AttemptEnded(job_state=job.state)\n"
                    "        refuse_ended(job, attempt)\n"
                ),
                new="        refuse_ended(job, attempt)\n",
            ),
        ),
    ),
    *PICTURE_MUTANTS,
    *ORDER_KIND_MUTANTS,
    *END_MUTANTS,
    *SWEEP_MUTANTS,
    *AUDIT_MUTANTS,
)


def main() -> int:
    """0 when the source passes and every mutant is found."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--ops", type=int, default=6000, help="how long to look for each")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--only", default="", help="those whose name contains this")
    asked = arguments.parse_args()
    chosen = [mutant for mutant in MUTANTS if asked.only in mutant.name]
    with tempfile.TemporaryDirectory(prefix="giornata-mutants-") as folder:
        for way in sorted({mutant.way for mutant in chosen}):
            sound = run(Path(folder), (), way=way, ops=asked.ops, seed=asked.seed)
            say(f"{'passes' if sound.returncode == 0 else 'FAILS ':6}  the source as it is, {way}")
            if sound.returncode != 0:
                say(sound.stdout + sound.stderr)
                return 1
        survivors = [mutant.name for mutant in chosen if not found(Path(folder), mutant, asked.ops, asked.seed)]
    say(f"{len(chosen) - len(survivors)} of {len(chosen)} found")
    return 1 if survivors else 0


def found(folder: Path, mutant: Mutant, ops: int, seed: int) -> bool:
    """Whether the model breaks on it, by an invariant and by nothing else."""
    ended = run(folder, mutant.patches, way=mutant.way, ops=ops, seed=seed)
    is_found = ended.returncode == 1 and "AssertionError" in ended.stdout
    said = next((line for line in ended.stdout.splitlines() if line.startswith("AssertionError")), "")
    say(f"{'found' if is_found else 'MISSED':6}  {mutant.name}, {_took(ended.stdout)}: {said[:140]}")
    if not is_found:
        say(ended.stdout + ended.stderr)
    return is_found


def _took(stdout: str) -> str:
    """How long the model looked, by its last line."""
    try:
        told = json.loads(stdout.splitlines()[-1])
        return f"{told['cpu_s']} s of computing, {told['operations']} operations in whole episodes before"
    except (IndexError, ValueError, KeyError):
        return "which did not come to an end"


def run(
    folder: Path, patches: tuple[Mutation, ...], *, way: str, ops: int, seed: int
) -> "subprocess.CompletedProcess[str]":
    """The model, with a patched copy of the source in front of any installed one."""
    source = folder / "src"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for patch in patches:
        plant(source / "giornata" / patch.file, patch)
    command = [sys.executable, "-m", "tests.contract.model.soak", "--on", way, "--as-is"]
    command += ["--ops", str(ops), "--seed", str(seed)]
    paths = os.pathsep.join([str(source), str(ROOT)])
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )


def say(line: str) -> None:
    """At once, also into a pipe."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def plant(file: Path, patch: Mutation) -> None:
    """Raises ValueError unless the text stands there exactly once."""
    text = file.read_text()
    if text.count(patch.old) != 1:
        raise ValueError(f"{patch.file} has {text.count(patch.old)} times, not once:\n{patch.old}")
    file.write_text(text.replace(patch.old, patch.new))


if __name__ == "__main__":
    sys.exit(main())
