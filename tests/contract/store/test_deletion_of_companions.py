"""What was made for a job or a project goes with it: audits, the jobs of a sweep, sign-ins, limits."""

from dataclasses import replace

import pytest
from tests.contract.store.test_audits import ALWAYS, ANN, KINDS, audited, machine, settle, sha256, taken, train, waits
from tests.contract.store.test_budgets import OWNER
from tests.contract.store.test_sweeps import finish, submitted
from tests.fixtures.contexts import ManualClock
from tests.fixtures.people import HOME, new_person, signed_in_at
from tests.fixtures.store_rig import StoreRig
from tests.fixtures.users import ROOT

from giornata.control.access.authenticate import signed_in
from giornata.control.access.signing_in.device_sign_in import approve_device, begin_device, take_device_key
from giornata.control.attempts.ending.complete import complete
from giornata.control.audit_log.chain import chain_rows
from giornata.control.end_of_life.delete_job import delete_job
from giornata.control.end_of_life.delete_project import SETTLED_AFTER_MS, delete_project
from giornata.control.end_of_life.finish_deletions import finish_deletions
from giornata.control.end_of_life.pins import set_pin
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.jobs.reading.read_sweep import compare_jobs, get_sweep
from giornata.control.jobs.settle_sweep import settle_sweeps
from giornata.control.jobs.stop_job import cancel
from giornata.control.projects.set_quotas import set_quotas
from giornata.domain.errors import Conflict, IllegalTransition, NotFound
from giornata.protocol.account.people import Role
from giornata.protocol.account.sign_in import ApproveDevice, AuthorizeDevice, DeviceRefusal
from giornata.protocol.node.work import CompleteAttempt
from giornata.protocol.project.admin import Scope
from giornata.protocol.project.quotas import SetQuotas
from giornata.protocol.specs import AUDIT_KIND
from giornata.store import schema

ANN_OWNER = replace(ANN, scopes=Scope.ADMIN.reach)


@pytest.fixture
def audited_rig(rig: StoreRig) -> StoreRig:
    """Ann's project, in which every stretch is audited."""
    rig.ctx = replace(rig.ctx, policy=replace(rig.ctx.policy, audits=ALWAYS))
    rig.add_project("ann")
    return rig


def below(rig: StoreRig, project_id: str = "ann") -> set[str]:
    """The sha256s of a project's objects."""
    return {found.key.rpartition("/")[2] for found in rig.ctx.blobs.list(f"{project_id}/")}


def hidden(rig: StoreRig, kind: str) -> list[bool]:
    return [row["deleted_at_ms"] is not None for row in rig.rows(schema.jobs, kind=kind)]


# ---- audits


def test_audited_job_leaves_its_verdict_and_no_byte(audited_rig: StoreRig) -> None:
    rig = audited_rig
    lease = train(rig, steps=(4,))
    audited(rig, 2)
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=12))
    assert below(rig) == {sha256("sound 4")}
    told = delete_job(rig.ctx, ANN, lease.job_id)
    assert (told.finished, below(rig)) == (True, set())
    (audit,) = rig.rows(schema.audits)
    assert (audit["state"], audit["sha256"], audit["machine_id"]) == ("confirmed", None, "machine-1")
    assert hidden(rig, AUDIT_KIND) == [True]


def test_open_audit_of_a_deleted_job_ends_without_a_verdict(audited_rig: StoreRig) -> None:
    rig = audited_rig
    lease = train(rig, steps=(4, 8))
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=12))
    waits(rig, 2)
    settle(rig)
    _, running = taken(rig, 2)
    delete_job(rig.ctx, ANN, lease.job_id)
    states = {(row["state"], row["message"], row["sha256"]) for row in rig.rows(schema.audits)}
    assert states == {("not_audited", "its job was deleted", None)}
    assert rig.attempt(running.attempt_id)["ended_at_ms"] is not None
    assert below(rig) == set()
    before = rig.rows(schema.events, job_id=lease.job_id)
    settle(rig)
    assert rig.rows(schema.events, job_id=lease.job_id) == before
    assert rig.claim(machine(rig, 3), kinds=KINDS).lease is None


def test_project_is_not_kept_busy_by_the_platforms_audits(audited_rig: StoreRig) -> None:
    rig = audited_rig
    lease = train(rig)
    with pytest.raises(Conflict, match=lease.job_id):
        delete_project(rig.ctx, ANN_OWNER, "ann", confirm="ann")
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=12))
    delete_project(rig.ctx, ANN_OWNER, "ann", confirm="ann")
    assert hidden(rig, AUDIT_KIND) == [True]
    assert below(rig) == set()


# ---- sweeps


def test_deleted_sweep_takes_its_jobs_with_it(rig: StoreRig) -> None:
    sweep, other = submitted(rig), submitted(rig)
    with pytest.raises(IllegalTransition, match="--cancel"):
        delete_job(rig.ctx, OWNER, sweep.job.id)
    delete_job(rig.ctx, OWNER, sweep.job.id, cancel=True)
    for job_id in (sweep.job.id, *(each.job_id for each in sweep.jobs)):
        assert rig.job(job_id)["state"] == "canceled"
        with pytest.raises(NotFound):
            get_job(rig.ctx, OWNER, job_id)
    settle_sweeps(rig.ctx)
    assert [each.state for each in get_sweep(rig.ctx, OWNER, other.job.id).jobs] == ["queued"] * 3


def test_sweep_with_a_pinned_job_is_not_deleted(rig: StoreRig) -> None:
    sweep = submitted(rig)
    pinned = sweep.jobs[1].job_id
    set_pin(rig.ctx, OWNER, pinned, pinned=True)
    with pytest.raises(Conflict, match=f"{pinned} is pinned"):
        delete_job(rig.ctx, OWNER, sweep.job.id, cancel=True)
    assert get_job(rig.ctx, OWNER, sweep.job.id).state == "running"


def test_sweep_without_one_of_its_jobs_goes_on_and_counts_what_the_job_cost(rig: StoreRig) -> None:
    sweep = submitted(rig)
    lease = rig.lease(1)
    finish(rig, lease, after_s=100)
    before = get_sweep(rig.ctx, OWNER, sweep.job.id).job.cost_micro_usd
    assert before > 0
    delete_job(rig.ctx, OWNER, lease.job_id)
    left = get_sweep(rig.ctx, OWNER, sweep.job.id)
    assert lease.job_id not in {each.job_id for each in left.jobs}
    assert (len(left.jobs), left.job.cost_micro_usd) == (2, before)
    with pytest.raises(NotFound):
        compare_jobs(rig.ctx, OWNER, [lease.job_id])
    for number in (2, 3):
        finish(rig, rig.lease(number))
    settle_sweeps(rig.ctx)
    assert get_sweep(rig.ctx, OWNER, sweep.job.id).job.state == "succeeded"
    assert delete_job(rig.ctx, OWNER, sweep.job.id).finished


# ---- a whole project


def test_deleted_project_keeps_its_log_and_people_and_loses_its_sign_ins_and_limits(
    audited_rig: StoreRig, clock: ManualClock
) -> None:
    rig = audited_rig
    lease = train(rig)
    audited(rig, 2)
    set_quotas(rig.ctx, ROOT, "ann", SetQuotas(max_running_jobs=1, allowed_adapters=("source:job",)))
    owner = new_person(rig.ctx, "owner", {"ann": Role.OWNER}, operator=True)
    with rig.store.begin() as tx:
        tx.identities.add("https://issuer.example", "7", user_id=owner.id, at_ms=0)
    caller = signed_in(rig.ctx, signed_in_at(rig.ctx, owner).secret, "ann")
    device = begin_device(rig.ctx, AuthorizeDevice(), HOME, page_url="https://a.example/device")
    approve_device(rig.ctx, caller, ApproveDevice(user_code=device.user_code, project_id="ann"), HOME)
    delete_project(rig.ctx, caller, "ann", confirm="ann", cancel=True)
    assert take_device_key(rig.ctx, device.device_code, HOME) is DeviceRefusal.INVALID_GRANT
    clock.advance_s(SETTLED_AFTER_MS / 1000)
    finish_deletions(rig.ctx)
    finish_deletions(rig.ctx)
    (project,) = rig.rows(schema.projects, id="ann")
    assert (project["max_running_jobs"], project["allowed_adapters"]) == (None, None)
    assert rig.rows(schema.device_sign_ins) == []
    assert [row["user_id"] for row in rig.rows(schema.user_identities)] == [owner.id]
    assert hidden(rig, AUDIT_KIND) == hidden(rig, "train") == [True]
    assert below(rig) == set()
    assert rig.rows(schema.blobs, project_id="ann") == []
    assert rig.rows(schema.ledger, attempt_id=lease.attempt_id)
    chain_rows(rig.ctx)
    verbs = [row["verb"] for row in rig.rows(schema.audit_log, project_id="ann")]
    assert verbs == ["project.set_quotas", "member.set", "project.delete"]
    assert [row["number"] for row in rig.rows(schema.audit_log_heads, project_id="ann")] == [3]


def test_deleted_job_leaves_one_row_in_the_audit_log(rig: StoreRig) -> None:
    sweep = submitted(rig)
    cancel(rig.ctx, OWNER, sweep.job.id)
    delete_job(rig.ctx, OWNER, sweep.job.id)
    (row,) = rig.rows(schema.audit_log, verb="job.delete")
    assert (row["target"], row["changes"]) == (sweep.job.id, {"kind": "sweep", "canceled": False, "jobs": 4})
    lines = rig.rows(schema.deletions)
    assert [(line["asked_by"], line["finished_at_ms"] is None) for line in lines] == [(OWNER.maker, False)] * 4
