"""What holds of audits: who pays for them, whom they strike, and what they take back."""

import json
from collections.abc import Mapping

from tests.contract.model.model_rig import LIAR, RowSnapshot
from tests.contract.model.replay import ReplayedJob, Saved, told_by

from giornata.domain.jobs.job import TERMINAL
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.project.admin import ROOT_PROJECT
from giornata.protocol.specs import AUDIT_KIND


class AuditWitness:
    """Follows the jobs that a refuted machine has trained."""

    def __init__(self) -> None:
        self.taken_back: dict[str, int] = {}  # jobs, each with the step to which it went back last

    def take_back(self, seen: RowSnapshot, replays: Mapping[str, ReplayedJob]) -> None:
        """Before the other events are told: an attempt that is ended by it resumes from what is left."""
        for event in seen.events:
            data = told_by(event)
            if event.type == "notice" and data["name"] == "taken-back" and event.job_id in replays:
                step = self.taken_back[event.job_id] = data["step"]
                mine = _with_earlier(replays, event.job_id)
                agreed = [
                    Saved(row.claimed_sha256, row.attempt_number if row.job_id == event.job_id else 0)
                    for row in seen.audits
                    if row.id == data["audit_id"] and (row.to_step, row.state) == (step, "confirmed")
                    if row.job_id in mine  # a later verdict of the same round may have let go of its bytes
                ]
                assert step == 0 or agreed, f"{event.job_id} goes back to {step}, which no two machines agree on"
                replays[event.job_id].take_back(step, agreed[-1] if agreed else None)

    def check_retries(self, seen: RowSnapshot) -> None:
        """No retry goes on from a checkpoint that the job before it lost to an audit."""
        retry_of = {row.id: row.retry_of for row in seen.jobs}
        lost = {
            (row.job_id, row.step, row.sha256)
            for row in seen.checkpoints
            if row.rejected and row.step > self.taken_back.get(row.job_id, row.step)
        }
        for row in seen.checkpoints:
            copied = (retry_of[row.job_id], row.step, row.sha256)
            assert row.rejected or row.attempt_number or copied not in lost, f"{row} is of a checkpoint in doubt"


def _with_earlier(replays: Mapping[str, ReplayedJob], job_id: str) -> set[str]:
    """The job, and those of which it is a retry."""
    found: set[str] = set()
    name: str | None = job_id
    while name is not None and name in replays:
        found.add(name)
        name = replays[name].retry_of
    return found


def check_guilt(seen: RowSnapshot) -> None:
    """No sound machine is struck or found guilty by an audit."""
    struck = {row.machine_id for row in seen.strikes if row.reason == Reason.AUDIT_MISMATCH}
    guilty = {row.guilty_machine_id for row in seen.audits if row.guilty_machine_id is not None}
    assert struck | guilty <= {LIAR}, f"sound machines are held guilty: {struck | guilty}"
    assert struck <= guilty, f"struck without a verdict: {struck}"


def check_payers(seen: RowSnapshot) -> None:
    """No tenant is billed for an audit, nor for what a machine made that an audit contradicts."""
    jobs = {row.id: row for row in seen.jobs}
    attempts = {row.id: row for row in seen.attempts}
    guilty = {row.guilty_machine_id for row in seen.audits if row.guilty_machine_id is not None}
    for bill in seen.ledger:
        job, machine = jobs[bill.job_id], attempts[bill.attempt_id].machine_id
        refunded = job.kind == "train" and machine in guilty and bill.project_id == ROOT_PROJECT
        due = ROOT_PROJECT if job.kind == AUDIT_KIND else job.billed_to or job.project_id
        assert bill.project_id == due or refunded, f"{bill} of {job} is billed to {bill.project_id}"


def check_beginnings(seen: RowSnapshot) -> None:
    """What an audit begins with is kept until it has ended."""
    read = {(row.job_id, row.sha256) for row in seen.job_inputs}
    for job in seen.jobs:
        if job.kind == AUDIT_KIND and job.state not in TERMINAL:
            spec = json.loads(job.spec) if isinstance(job.spec, str) else job.spec
            held = spec["checkpoint"] is None or (job.id, spec["checkpoint"]) in read
            assert held, f"nothing holds what {job} begins with"
