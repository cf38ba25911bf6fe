"""Files of a machine that an audit refuted live on in retries, continuations and orders: what becomes of those."""

from dataclasses import replace

import pytest
import sqlalchemy as sa
from tests.contract.store.test_audits import (
    ALWAYS,
    ANN,
    audited,
    audited_always,
    commit,
    machine,
    refuted,
    sha256,
    train,
)
from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.ending.complete import complete
from giornata.control.jobs.retry import retry
from giornata.control.jobs.stop_job import cancel
from giornata.domain.jobs.audits import AuditPolicy
from giornata.protocol.node.work import CompleteAttempt, Lease
from giornata.protocol.project.admin import ROOT_PROJECT
from giornata.store import schema

LIE = "a lie at 8"


@pytest.fixture
def rig(rig: StoreRig) -> StoreRig:
    return audited_always(rig)


def audit_policy(rig: StoreRig, policy: AuditPolicy) -> None:
    rig.ctx = replace(rig.ctx, policy=replace(rig.ctx.policy, audits=policy))


def lied_to(rig: StoreRig, *, agreed: bool = True) -> Lease:
    """A canceled job of machine 1: step 4 is sound, and agreed on if it is audited, and step 8 is a lie."""
    lease = train(rig, steps=())
    if agreed:
        commit(rig, lease, 4)
        audited(rig, 2)
    audit_policy(rig, AuditPolicy())
    commit(rig, lease, 8, LIE)
    cancel(rig.ctx, ANN, lease.job_id)
    return lease


def found_out(rig: StoreRig) -> None:
    """Machine 1 lies in another job, and two others say so."""
    audit_policy(rig, ALWAYS)
    rig.clock.advance_s(10)
    refuted(rig, train(rig, steps=()), 2)


def retried(rig: StoreRig, job_id: str, *, on: int, steps: tuple[int, ...] = ()) -> Lease:
    """A retry of the job, in training on a sound machine, which commits these steps."""
    again = retry(rig.ctx, ANN, job_id)
    lease = rig.lease(machine(rig, on))
    assert lease.job_id == again.id
    for step in steps:
        commit(rig, lease, step, f"after {step}")
    return lease


def usable(rig: StoreRig, job_id: str) -> dict[int, str]:
    return {row["step"]: row["sha256"] for row in rig.rows(schema.checkpoints, job_id=job_id, rejected=False)}


def reads(rig: StoreRig, role: str, content_sha256: str, *, kind: str = "generate", owner: str = "ann") -> str:
    """A job that reads this file of Ann's."""
    job_id = rig.add_job(kind=kind, project_id=owner, state="succeeded", ended_at_ms=rig.clock.now_ms())
    row = {"job_id": job_id, "role": role, "project_id": "ann", "sha256": content_sha256}
    with rig.store.begin() as tx:
        tx.connection.execute(sa.insert(schema.job_inputs).values(row))
    return job_id


def doubts(rig: StoreRig, job_id: str) -> list[str]:
    """The files about which the job's owner was told."""
    data = [row["data"] for row in rig.rows(schema.events, job_id=job_id, type="notice")]
    return [each["sha256"] for each in data if each["name"] == "input-in-doubt"]


def test_running_retry_goes_back_to_where_the_job_before_it_goes_back(rig: StoreRig) -> None:
    first = lied_to(rig)
    again = retried(rig, first.job_id, on=4, steps=(10,))
    found_out(rig)
    job = rig.job(again.job_id)
    assert (job["state"], job["committed_step"], job["suspect"]) == ("queued", 4, False)
    assert usable(rig, again.job_id) == {4: sha256("sound 4")}
    assert rig.attempt(again.attempt_id)["reason"] == "superseded"
    assert rig.rows(schema.strikes, machine_id="machine-4") == []
    assert rig.last_event(again.job_id, "notice")["name"] == "taken-back"
    leases = [rig.lease(machine(rig, number)) for number in (5, 6)]
    assert [[row.step for row in each.checkpoints] for each in leases if each.job_id == again.job_id] == [[4]]


@pytest.mark.parametrize(("agreed", "step"), [(True, 4), (False, 0)])
def test_finished_retry_is_suspect_and_trained_again_at_no_cost(
    rig: StoreRig,
    agreed: bool,
    step: int,
) -> None:
    first = lied_to(rig, agreed=agreed)
    again = retried(rig, first.job_id, on=4, steps=(10,))
    complete(rig.ctx, again.attempt_id, CompleteAttempt(step=12))
    found_out(rig)
    assert rig.job(again.job_id)["suspect"]
    third = retry(rig.ctx, ANN, again.job_id)
    assert (third.committed_step, rig.job(third.id)["billed_to"]) == (step, ROOT_PROJECT)


def test_retries_of_retries_go_back_too(rig: StoreRig) -> None:
    first = lied_to(rig)
    second = retried(rig, first.job_id, on=4, steps=(10,))
    cancel(rig.ctx, ANN, second.job_id)
    third = retried(rig, second.job_id, on=5)
    assert [each.step for each in third.checkpoints] == [10, 8]
    found_out(rig)
    assert rig.job(third.job_id)["committed_step"] == 4
    assert usable(rig, third.job_id) == {4: sha256("sound 4")}


def test_retry_from_before_the_lie_keeps_its_work(rig: StoreRig) -> None:
    first = lied_to(rig)
    with rig.store.begin() as tx:
        tx.checkpoints.reject(first.job_id, 8)  # its bytes were lost
        tx.jobs.update(first.job_id, committed_step=4)
    again = retried(rig, first.job_id, on=4, steps=(10,))
    found_out(rig)
    assert rig.job(again.job_id)["committed_step"] == 10
    assert rig.attempt(again.attempt_id)["ended_at_ms"] is None


def test_owners_of_jobs_that_read_files_in_doubt_are_told(rig: StoreRig) -> None:
    rig.add_project("bob")
    first = lied_to(rig)
    going_on = reads(rig, "init_lora", sha256(LIE), kind="train")
    drawn = reads(rig, "lora:0", sha256(LIE), owner="bob")
    sound = reads(rig, "lora:0", sha256("sound 4"))
    shown = reads(rig, "checkpoint", sha256(LIE), kind="validate")
    lora = rig.add_blob(b"made of a lie", project_id="ann")
    with rig.store.begin() as tx:
        row = {"job_id": going_on, "name": "lora.safetensors", "attempt_id": first.attempt_id, "project_id": "ann"}
        more = {"sha256": lora.sha256, "size_bytes": lora.size_bytes, "media_type": "x", "created_at_ms": 0}
        tx.connection.execute(sa.insert(schema.artifacts).values(row | more))
    drawn_of_it = reads(rig, "lora:0", lora.sha256)
    found_out(rig)
    assert [doubts(rig, job_id) for job_id in (going_on, drawn)] == [[sha256(LIE)], [sha256(LIE)]]
    assert doubts(rig, drawn_of_it) == [lora.sha256]
    assert doubts(rig, sound) == doubts(rig, shown) == []
    told = rig.last_event(drawn, "notice")
    assert first.job_id not in str(told), "another project's job has no name here"
