"""Replay audits: stretches that are run again elsewhere, what the results lead to, and what that costs whom."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.auditing.settle_audits import settle_audits
from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.reported_ends import fail, release
from giornata.control.attempts.report import put_metrics
from giornata.control.budgets.budgets import SETTLES_MS, project_spent
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.retry import retry
from giornata.control.jobs.stop_job import expire_deadlines
from giornata.control.memory.process_cache import REFUTATIONS_MS, ProcessCache
from giornata.control.ports.user_queries.records import OrderFile
from giornata.control.storage.collect import collect
from giornata.domain.errors import IllegalTransition
from giornata.domain.jobs.audits import AuditPolicy
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import (
    CompleteAttempt,
    FailAttempt,
    Lease,
    MetricBatch,
    NodeInfo,
    ReleaseAttempt,
    StepMetrics,
)
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.protocol.specs import AUDIT_KIND
from giornata.store import schema

KINDS = ("train", AUDIT_KIND)
ALWAYS = AuditPolicy(share=2.0)  # also of a machine that is audited less often than others
ANN = Caller(project_id="ann", scopes=Scope.MEMBER.reach, key_id="key_ann")
SPEC: dict[str, Any] = {"pretrained_model_name_or_path": "base", "dataset": "ds_none", "max_train_steps": 12}
HERE: dict[str, Any] = {"history": [{"from_step": 0, "fingerprint": {"device": "cpu"}}]}


def checkpoint_bytes(content: str, conditions: Mapping[str, Any] = HERE) -> bytes:
    """A safetensors file with no tensor, whose header tells the conditions and whose bytes depend on the content."""
    told = {"giornata": json.dumps(conditions), "content": content}
    header = json.dumps({"__metadata__": told}).encode()
    return len(header).to_bytes(8, "little") + header


def sha256(content: str, conditions: Mapping[str, Any] = HERE) -> str:
    return hashlib.sha256(checkpoint_bytes(content, conditions)).hexdigest()


@pytest.fixture
def rig(rig: StoreRig) -> StoreRig:
    """Every stretch is audited."""
    return audited_always(rig)


def audited_always(rig: StoreRig) -> StoreRig:
    """The rig, with Ann's project and dataset, in which every stretch is audited."""
    rig.ctx = replace(rig.ctx, policy=replace(rig.ctx.policy, audits=ALWAYS))
    rig.add_project("ann")
    with rig.store.begin() as tx:
        row = {"id": "ds_none", "project_id": "ann", "labels": {}, "notes": [], "created_at_ms": 0}
        tx.connection.execute(sa.insert(schema.datasets).values(**row, picture_count=0, size_bytes=0))
    return rig


def machine(rig: StoreRig, number: int, fleet: str | None = None) -> NodeInfo:
    return rig.node(number).model_copy(update={"fleet": fleet or f"fleet-{number}"})


def train(
    rig: StoreRig, number: int = 1, *, fleet: str | None = None, steps: tuple[int, ...] = (4,), **job: Any
) -> Lease:
    """A job of Ann's in training on machine `number`, with sound checkpoints after these steps."""
    rig.add_job(spec=SPEC, project_id="ann", **job)
    lease = rig.lease(machine(rig, number, fleet), kinds=KINDS)
    for step in steps:
        commit(rig, lease, step)
    return lease


def commit(rig: StoreRig, lease: Lease, step: int, content: str = "", conditions: Mapping[str, Any] = HERE) -> None:
    data = checkpoint_bytes(content or f"sound {step}", conditions)
    rig.checkpoint(lease, step, data, project_id="ann")


def waits(rig: StoreRig, *numbers: int, fleet: str | None = None) -> None:
    """These machines ask for work and get none."""
    for number in numbers:
        assert rig.claim(machine(rig, number, fleet), kinds=KINDS).lease is None


def settle(rig: StoreRig) -> list[Mapping[str, Any]]:
    settle_audits(rig.ctx)
    return rig.rows(schema.audits)


def taken(rig: StoreRig, *numbers: int, fleet: str | None = None) -> tuple[int, Lease]:
    """The one machine of these that gets an audit, and its lease."""
    found = [(number, rig.claim(machine(rig, number, fleet), kinds=KINDS).lease) for number in numbers]
    ((number, lease),) = [
        (number, lease) for number, lease in found if lease is not None and lease.kind == AUDIT_KIND
    ]
    return number, lease


def finish(
    rig: StoreRig, lease: Lease, content: str = "", conditions: Mapping[str, Any] = HERE, **files: str
) -> None:
    step = lease.spec["to_step"]
    told = {"sha256": sha256(content or f"sound {step}", conditions), "files": files, **conditions}
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=step, summary=told))


def state(rig: StoreRig) -> tuple[str, str | None]:
    (audit,) = settle(rig)
    return audit["state"], audit["guilty_machine_id"]


def audited(rig: StoreRig, *numbers: int, content: str = "") -> int:
    """Let one of the machines run the waiting audit with this result; its number."""
    waits(rig, *numbers)
    settle(rig)
    number, lease = taken(rig, *numbers)
    finish(rig, lease, content)
    settle(rig)
    return number


# ---- drawing


def test_a_commit_orders_an_audit_that_reads_the_checkpoint_before_and_names_no_result(rig: StoreRig) -> None:
    lease = train(rig, steps=(4, 8))
    audits = rig.rows(schema.audits)
    assert {(row["from_step"], row["to_step"], row["state"]) for row in audits} == {(0, 4, "open"), (4, 8, "open")}
    jobs = {row["spec"]["to_step"]: row for row in rig.rows(schema.jobs, kind=AUDIT_KIND)}
    assert {row["billed_to"] for row in jobs.values()} == {ROOT_PROJECT}
    assert (jobs[4]["spec"]["checkpoint"], jobs[8]["spec"]["checkpoint"]) == (None, sha256("sound 4"))
    assert sha256("sound 8") not in json.dumps(jobs[8]["spec"])
    assert lease.job_id == jobs[8]["spec"]["job"]


@pytest.mark.parametrize(
    "policy",
    [
        AuditPolicy(),
        AuditPolicy(share=0.0, share_by_fleet={"fleet-2": 1.0}),
        AuditPolicy(share=1.0, share_by_fleet={"fleet-1": 0.0}),
    ],
)
def test_a_fleet_without_a_share_is_not_audited(rig: StoreRig, policy: AuditPolicy) -> None:
    rig.ctx = replace(rig.ctx, policy=replace(rig.ctx.policy, audits=policy))
    train(rig)
    assert rig.rows(schema.audits) == []


def test_a_share_is_that_of_the_stretches(rig: StoreRig) -> None:
    rig.ctx = replace(rig.ctx, policy=replace(rig.ctx.policy, audits=AuditPolicy(share=0.1)))
    train(rig, steps=tuple(range(1, 201)))
    assert 20 <= len(rig.rows(schema.audits)) <= 60  # twice the share, as the machine is new


def test_an_attempt_that_began_with_a_checkpoint_that_is_gone_is_not_audited(rig: StoreRig) -> None:
    lease = train(rig, steps=(4,))
    release(rig.ctx, lease.attempt_id, ReleaseAttempt())
    again = rig.lease(machine(rig, 1), kinds=("train",))
    with rig.store.begin() as tx:
        tx.checkpoints.reject(again.job_id, 4)
    commit(rig, again, 8)
    assert [row["to_step"] for row in rig.rows(schema.audits)] == [4]


# ---- machines


def test_audit_is_claimed_by_no_node_before_a_machine_is_drawn(rig: StoreRig) -> None:
    train(rig)
    waits(rig, 1, 2, 3)


def test_an_audit_goes_to_one_idle_machine_and_never_to_the_audited_one(rig: StoreRig) -> None:
    lease = train(rig)
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=12))
    waits(rig, 1)
    settle(rig)
    waits(rig, 1, 2, 3)
    settle(rig)
    number, audit = taken(rig, 1, 2, 3)
    assert number in {2, 3}
    assert audit.spec["to_step"] == 4


def test_a_machine_that_gets_busy_loses_the_audit_to_another(rig: StoreRig) -> None:
    train(rig)
    waits(rig, 2)
    settle(rig)
    (pinned,) = rig.rows(schema.jobs, kind=AUDIT_KIND)
    assert pinned["only_machine_id"] == "machine-2"
    rig.clock.advance_s(rig.ctx.policy.node_gone_after_s + 1)
    waits(rig, 3)
    settle(rig)
    assert taken(rig, 2, 3)[0] == 3


def test_an_audit_that_no_machine_takes_ends_as_not_audited_and_the_job_says_so(rig: StoreRig) -> None:
    lease = train(rig)
    settle(rig)
    rig.clock.advance_s(rig.ctx.policy.audits.waits_s + 1)
    expire_deadlines(rig.ctx)
    assert state(rig) == ("not_audited", None)
    told = rig.last_event(lease.job_id, "notice")
    assert (told["name"], told["state"], told["step"]) == ("audited", "not_audited", 4)
    assert "no machine with an equal fingerprint" in told["message"]


def test_a_machine_with_another_device_is_not_asked(rig: StoreRig) -> None:
    train(rig)
    other = machine(rig, 2).model_copy(update={"device": "another"})
    assert rig.claim(other, kinds=KINDS).lease is None
    settle(rig)
    assert rig.claim(other, kinds=KINDS).lease is None


def test_a_run_that_fails_is_tried_on_another_machine(rig: StoreRig) -> None:
    train(rig)
    waits(rig, 2)
    settle(rig)
    _, lease = taken(rig, 2)
    fail(rig.ctx, lease.attempt_id, FailAttempt(reason=Reason.BAD_DATA, message="no"))
    settle(rig)
    assert audited(rig, 2, 3) == 3
    assert state(rig) == ("confirmed", None)


# ---- verdicts


def test_an_equal_result_confirms_the_stretch_and_is_told(rig: StoreRig) -> None:
    lease = train(rig)
    audited(rig, 2)
    assert state(rig) == ("confirmed", None)
    assert rig.last_event(lease.job_id, "notice")["state"] == "confirmed"
    assert rig.rows(schema.strikes) == []


def test_a_machine_that_two_others_contradict_is_struck_and_quarantined(rig: StoreRig) -> None:
    lease = train(rig, steps=())
    commit(rig, lease, 4, "a lie")
    audited(rig, 2)
    assert state(rig) == ("contested", None)
    audited(rig, 3)
    assert state(rig) == ("refuted", "machine-1")
    assert [(row["machine_id"], row["reason"]) for row in rig.rows(schema.strikes)] == [
        ("machine-1", "audit_mismatch")
    ]
    (health,) = rig.rows(schema.machines, machine_id="machine-1", kind="train")
    assert health["state"] == "quarantined"
    assert health["reason"].endswith(f"1 × audit_mismatch; in doubt: {lease.job_id}")


def test_an_auditor_that_lies_is_struck_and_the_claim_confirmed(rig: StoreRig) -> None:
    lease = train(rig)
    first = audited(rig, 2, 3, content="a lie")
    other = audited(rig, 5 - first)
    assert other != first
    assert state(rig) == ("confirmed", f"machine-{first}")
    assert [row["machine_id"] for row in rig.rows(schema.strikes)] == [f"machine-{first}"]
    assert rig.attempt(lease.attempt_id)["ended_at_ms"] is None


def test_three_results_strike_nobody(rig: StoreRig) -> None:
    train(rig)
    audited(rig, 2, content="one")
    audited(rig, 3, content="two")
    assert state(rig) == ("undecided", None)
    assert rig.rows(schema.strikes) == []


def test_the_third_machine_is_of_no_fleet_of_the_two(rig: StoreRig) -> None:
    train(rig, fleet="same")
    waits(rig, 2, fleet="same")
    settle(rig)
    _, lease = taken(rig, 2, fleet="same")
    finish(rig, lease, "a lie")
    settle(rig)
    waits(rig, 3, 4, fleet="same")
    settle(rig)
    waits(rig, 3, 4, fleet="same")  # two of one owner could agree on anything
    assert audited(rig, 5) == 5
    assert state(rig) == ("confirmed", "machine-2")


def test_machines_of_a_fleet_that_a_provider_fills_judge_one_another(rig: StoreRig) -> None:
    policy = replace(rig.ctx.policy.audits, rented_fleets=frozenset({"same"}))
    rig.ctx = replace(rig.ctx, policy=replace(rig.ctx.policy, audits=policy))
    lease = train(rig, fleet="same", steps=())
    commit(rig, lease, 4, "a lie")
    for number in (2, 3):
        waits(rig, number, fleet="same")
        settle(rig)
        finish(rig, taken(rig, number, fleet="same")[1])
        settle(rig)
    assert state(rig) == ("refuted", "machine-1")


def test_another_fingerprint_says_nothing_and_another_machine_is_asked(rig: StoreRig) -> None:
    train(rig)
    waits(rig, 2)
    settle(rig)
    there = {"history": [{"from_step": 0, "fingerprint": {"device": "other"}}]}
    finish(rig, taken(rig, 2)[1], "elsewhere", there)
    assert state(rig) == ("open", None)
    assert audited(rig, 2, 3) == 3
    assert state(rig) == ("confirmed", None)


ALONE = {"device": "cpu"}
FIRST = {"place": 0, "width": 1, "rank": 16}
BESIDE = FIRST | {"width": 2}
LESS = {"gradient_checkpointing": "full", "rows": 1}


def since(step: int, **fingerprint: Any) -> dict[str, Any]:
    """An entry of a history."""
    return {"from_step": step, "fingerprint": ALONE | fingerprint}


@pytest.mark.parametrize(
    ("entries", "spec"),
    [
        ([since(0), since(5)], {}),
        ([since(0), since(4, footprint=LESS)], {}),
        ([since(0), since(2)], {}),
        ([since(0), since(2, device="other")], {}),
        ([since(0), since(2, footprint=LESS | {"rows": 99})], {}),
        ([since(0), since(2, footprint={"rows": 1})], {}),
        ([since(2, footprint=LESS), since(0)], {}),
        ([since(0), since(2, joint=FIRST)], {}),
        ([since(0, joint=FIRST), since(2)], {}),
        ([since(0, joint=FIRST), since(2, joint=FIRST | {"place": 1})], {}),
        ([since(0, joint=FIRST | {"rank": 64})], {}),
        ([since(0, joint={"place": 0})], {}),
        ([since(0, joint=FIRST, footprint=LESS)], {}),
        ([since(0, joint=BESIDE)], {}),
        ([since(0, joint=FIRST), since(2, joint=BESIDE)], {}),
        ([since(0, joint=FIRST)], {"share_batch": False}),
    ],
)
def test_conditions_that_cannot_be_are_not_repeated_and_excuse_no_difference(
    rig: StoreRig, entries: list[dict[str, Any]], spec: dict[str, Any]
) -> None:
    rig.add_job(spec=SPEC | spec, project_id="ann")
    lease = rig.lease(machine(rig, 1), kinds=KINDS)
    commit(rig, lease, 4, "a lie", {"history": entries})
    audited(rig, 2)
    assert state(rig) == ("contested", None)
    audited(rig, 3)
    assert state(rig) == ("refuted", "machine-1")
    assert [row["spec"]["conditions"] for row in rig.rows(schema.jobs, kind=AUDIT_KIND)] == [[], []]


@pytest.mark.parametrize(
    ("entries", "repeated"),
    [
        ([since(0, joint=FIRST)], [(0, 0, 1, None)]),
        ([since(0), since(2, footprint=LESS)], [(0, None, None, None), (2, None, None, 1)]),
    ],
)
@pytest.mark.parametrize("content", ["sound 4", "a lie"])
def test_conditions_of_a_checkpoint_are_repeated_and_a_difference_under_them_counts(
    rig: StoreRig, entries: list[dict[str, Any]], repeated: list[tuple[Any, ...]], content: str
) -> None:
    told = {"history": entries}
    lease = train(rig, steps=())
    commit(rig, lease, 4, content, told)
    waits(rig, 2)
    settle(rig)
    _, audit = taken(rig, 2)
    names = ("from_step", "place", "width", "rows")
    assert [tuple(each[name] for name in names) for each in audit.spec["conditions"]] == repeated
    finish(rig, audit, "sound 4", told)
    if content == "sound 4":
        assert state(rig) == ("confirmed", None)
        return
    assert state(rig) == ("contested", None)
    waits(rig, 3)
    settle(rig)
    finish(rig, taken(rig, 3)[1], "sound 4", told)
    assert state(rig) == ("refuted", "machine-1")


def test_a_checkpoint_that_tells_another_beginning_than_the_one_before_it_excuses_no_difference(
    rig: StoreRig,
) -> None:
    rig.ctx = replace(rig.ctx, policy=replace(rig.ctx.policy, audits=AuditPolicy()))
    lease = train(rig)
    rig.ctx = replace(rig.ctx, policy=replace(rig.ctx.policy, audits=ALWAYS))
    commit(rig, lease, 8, "a lie", {"history": [since(0, threads=7)]})
    audited(rig, 2)
    assert state(rig) == ("contested", None)


def test_a_machine_that_repeats_a_stretch_under_none_of_its_conditions_says_nothing(rig: StoreRig) -> None:
    lease = train(rig, steps=())
    commit(rig, lease, 4, conditions={"history": [since(0, joint=FIRST)]})
    audited(rig, 2, content="alone")
    assert state(rig) == ("open", None)


@pytest.mark.parametrize(
    ("left_s", "width", "expected"),
    [(None, 2, "open"), (-60, 2, "open"), (-3600, 2, "contested"), (None, 4, "contested")],
)
def test_shared_batch_is_believed_where_the_node_had_as_many_other_jobs(
    rig: StoreRig, left_s: int | None, width: int, expected: str
) -> None:
    lease = train(rig, steps=())
    beside = rig.add_job(spec=SPEC, project_id="ann", state="canceled", ended_at_ms=0)
    mine = rig.attempt(lease.attempt_id)
    other = dict(mine) | {"id": "att_other", "number": 7, "request_id": "another", "started_at_ms": 0}
    with rig.store.begin() as tx:
        ended_at_ms = None if left_s is None else mine["started_at_ms"] + left_s * 1000
        values = other | {"job_id": beside, "ended_at_ms": ended_at_ms}
        tx.connection.execute(sa.insert(schema.attempts).values(values))
    commit(rig, lease, 4, conditions={"history": [since(0, joint=BESIDE | {"width": width})]})
    audited(rig, 2)
    assert state(rig)[0] == expected


@pytest.mark.parametrize(("told", "expected"), [(0.5, "confirmed"), (0.25, "contested")])
def test_right_bytes_with_other_losses_contest_the_stretch(rig: StoreRig, told: float, expected: str) -> None:
    lease = train(rig)
    report_loss(rig, lease, 3, 0.5)
    waits(rig, 2)
    settle(rig)
    _, audit = taken(rig, 2)
    report_loss(rig, audit, 3, told)
    finish(rig, audit)
    assert state(rig)[0] == expected


@pytest.mark.parametrize(("content", "expected"), [(b"the lora", "confirmed"), (b"another", "contested")])
def test_the_last_stretch_compares_the_lora_file_too(rig: StoreRig, content: bytes, expected: str) -> None:
    lease = train(rig, steps=(12,))
    blob = rig.add_blob(b"the lora", project_id="ann")
    with rig.store.begin() as tx:
        row = {
            "job_id": lease.job_id,
            "name": "lora.safetensors",
            "attempt_id": lease.attempt_id,
            "project_id": "ann",
        }
        more = {"sha256": blob.sha256, "size_bytes": blob.size_bytes, "media_type": "x", "created_at_ms": 0}
        tx.connection.execute(schema.artifacts.insert().values(row | more))
    waits(rig, 2)
    settle(rig)
    finish(rig, taken(rig, 2)[1], **{"lora.safetensors": hashlib.sha256(content).hexdigest()})
    assert state(rig)[0] == expected


def report_loss(rig: StoreRig, lease: Lease, step: int, loss: float) -> None:
    put_metrics(rig.ctx, lease.attempt_id, MetricBatch(points=(StepMetrics(step=step, values={"loss": loss}),)))


# ---- what follows


def refuted(rig: StoreRig, lease: Lease, step: int) -> None:
    """Machine 1 lies about the steps up to this one, and two others say so."""
    commit(rig, lease, step, "a lie")
    audited(rig, 2)
    audited(rig, 3)


def test_an_unfinished_job_goes_back_to_the_last_checkpoint_that_two_machines_agree_on(rig: StoreRig) -> None:
    lease = train(rig)
    audited(rig, 2)
    rig.ctx = replace(rig.ctx, policy=replace(rig.ctx.policy, audits=AuditPolicy()))
    commit(rig, lease, 6)
    commit(rig, lease, 8)
    rig.ctx = replace(rig.ctx, policy=replace(rig.ctx.policy, audits=ALWAYS))
    refuted(rig, lease, 10)
    job = rig.job(lease.job_id)
    assert (job["state"], job["committed_step"], job["interrupted"]) == ("queued", 4, True)
    assert rig.attempt(lease.attempt_id)["reason"] == "audit_mismatch"
    again = rig.lease(machine(rig, 4), kinds=("train",))
    assert (again.job_id, [each.step for each in again.checkpoints]) == (lease.job_id, [4])


def test_a_job_without_an_agreed_checkpoint_begins_anew(rig: StoreRig) -> None:
    lease = train(rig, steps=())
    refuted(rig, lease, 4)
    again = rig.lease(machine(rig, 4), kinds=("train",))
    assert (again.job_id, again.checkpoints) == (lease.job_id, ())


def test_a_finished_job_of_the_machine_is_marked_and_work_before_its_last_sound_audit_is_not(rig: StoreRig) -> None:
    before = train(rig)
    audited(rig, 2)
    complete(rig.ctx, before.attempt_id, CompleteAttempt(step=12))
    rig.clock.advance_s(10)
    sound = train(rig)
    audited(rig, 2)
    complete(rig.ctx, sound.attempt_id, CompleteAttempt(step=12))
    rig.clock.advance_s(10)
    refuted(rig, train(rig, steps=()), 4)
    assert [rig.job(each.job_id)["suspect"] for each in (before, sound)] == [False, True]
    assert rig.last_event(sound.job_id, "notice")["suspect"]
    again = retry(rig.ctx, ANN, sound.job_id)
    assert (again.state, again.committed_step, again.suspect) == ("queued", 4, False)
    assert rig.job(again.id)["billed_to"] == ROOT_PROJECT
    with pytest.raises(IllegalTransition):
        retry(rig.ctx, ANN, before.job_id)


def test_the_platform_pays_for_audits_and_for_refuted_work(rig: StoreRig) -> None:
    lease = train(rig, steps=())
    rig.clock.advance_s(10)
    refuted(rig, lease, 4)
    assert {row["project_id"] for row in rig.rows(schema.ledger)} == {ROOT_PROJECT}
    again = rig.lease(machine(rig, 4), kinds=("train",))
    (row,) = rig.rows(schema.ledger, attempt_id=again.attempt_id)
    assert row["project_id"] == "ann"


def test_sums_that_another_server_remembers_lose_refuted_work_within_ten_seconds(rig: StoreRig) -> None:
    other = replace(rig.ctx, memory=ProcessCache())

    def spent(ctx: Context) -> list[int]:
        """Ann's spending by what this server remembers, ever and in this month."""
        with rig.store.read() as tx:
            found = project_spent(tx, ctx, "ann", at_ms=rig.clock.now_ms())
        return [found.total_micro_usd, found.month_micro_usd]

    done = train(rig)
    audited(rig, 2)
    rig.clock.advance_s(10)
    complete(rig.ctx, done.attempt_id, CompleteAttempt(step=12))
    whole = spent(rig.ctx)
    assert whole[0] == whole[1] > 0
    rig.clock.advance_s(SETTLES_MS / 500)
    assert [spent(ctx) for ctx in (rig.ctx, other)] == [whole, whole], "it is settled, and remembered"
    assert other.memory.settled("ann") is not None
    lease = train(rig, steps=())
    other.memory.remember_refutations((0, 0), at_ms=rig.clock.now_ms())
    refuted(rig, lease, 4)
    assert {row["project_id"] for row in rig.rows(schema.ledger)} == {ROOT_PROJECT}
    assert spent(rig.ctx) == [0, 0]
    assert spent(other) == whole, "it has not looked yet"
    rig.clock.advance_s(REFUTATIONS_MS / 1000)
    assert spent(other) == [0, 0]


def test_an_agreed_checkpoint_is_kept_as_long_as_the_job_lasts_and_the_retention_after_it(rig: StoreRig) -> None:
    lease = train(rig)
    audited(rig, 2)
    for step in (6, 8, 10):
        commit(rig, lease, step)
    rig.clock.advance_s(2 * rig.ctx.policy.garbage_after_s)
    expire_deadlines(rig.ctx)
    settle(rig)
    collect(rig.ctx)
    assert rig.rows(schema.blobs, sha256=sha256("sound 4"))
    assert not rig.rows(schema.blobs, sha256=sha256("sound 6"))
    with rig.store.begin() as tx:
        tx.jobs.update(lease.job_id, ended_at_ms=rig.clock.now_ms())
    rig.clock.advance_s(rig.ctx.policy.audits.kept_s + 1)
    collect(rig.ctx)
    assert not rig.rows(schema.blobs, sha256=sha256("sound 4"))


def test_agreed_checkpoint_stays_kept_when_an_earlier_one_is_confirmed_after_it(rig: StoreRig) -> None:
    lease = train(rig, steps=(4, 6))
    waits(rig, 2, 3)
    settle(rig)
    runs = [rig.claim(machine(rig, number), kinds=KINDS).lease for number in (2, 3)]
    by_step = {run.spec["to_step"]: run for run in runs if run is not None}
    for step in (6, 4):
        finish(rig, by_step[step])
        settle(rig)
    kept = {row["to_step"]: row["sha256"] for row in rig.rows(schema.audits, job_id=lease.job_id)}
    assert kept == {4: None, 6: sha256("sound 6")}


def test_retry_of_an_audit_by_the_owner_of_the_audited_job_is_refused(rig: StoreRig) -> None:
    train(rig)
    rig.clock.advance_s(ALWAYS.waits_s + 1)
    expire_deadlines(rig.ctx)
    (audit,) = rig.rows(schema.jobs, kind=AUDIT_KIND)
    assert audit["state"] == "expired"
    with pytest.raises(IllegalTransition, match="an audit cannot be retried"):
        retry(rig.ctx, ANN, audit["id"])
    assert len(rig.rows(schema.jobs, kind=AUDIT_KIND)) == 1


def test_base_of_a_job_that_has_ended_stays_for_each_run_of_its_audit(rig: StoreRig) -> None:
    base = rig.add_blob(b"weights", project_id="ann")
    rig.clock.advance_s(8 * 86_400)
    job_id = rig.add_job(spec=SPEC | {"pretrained_model_sha256": base.sha256}, project_id="ann")
    with rig.store.begin() as tx:
        tx.submission.add_order_files(job_id, [OrderFile(role="model:1", project_id="ann", sha256=base.sha256)])
    training = rig.lease(machine(rig, 1), kinds=KINDS)
    commit(rig, training, 4)
    complete(rig.ctx, training.attempt_id, CompleteAttempt(step=12))
    collect(rig.ctx)
    for content in ("another", "sound 4"):
        waits(rig, 2, 3)
        settle(rig)
        _, run = taken(rig, 2, 3)
        assert [each.download.sha256 for each in run.files] == [base.sha256]
        finish(rig, run, content)
        settle(rig)
        collect(rig.ctx)
    assert rig.rows(schema.blobs, sha256=base.sha256) == []
