"""Submits and completes that are done in one transaction: each comes out as it would have alone."""

from collections.abc import Sequence

import pytest
from tests.contract.store.test_claims_together import database_kind, told, twins  # noqa: F401 - fixtures
from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.ending.complete import Completion, complete_each
from giornata.control.attempts.ending.reported_ends import fail
from giornata.control.caller import Caller
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.jobs.submission.submit import JobRequest, submit_each
from giornata.control.projects.set_budget import set_project_budget
from giornata.domain.errors import Conflict, GiornataError, InvalidInput, LeaseLost, OverBudget
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.node.work import CompleteAttempt, FailAttempt, Lease
from giornata.protocol.project.admin import ROOT_PROJECT, Scope, SetBudget
from giornata.store import schema

ROOT = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_root")
ANN = Caller(project_id="ann", scopes=Scope.MEMBER.reach, key_id="key_ann")
BOB = Caller(project_id="bob", scopes=Scope.MEMBER.reach, key_id="key_bob")


def asked(caller: Caller, *, key: str | None = None, **job: object) -> JobRequest:
    request = SubmitJob.model_validate({"kind": "x-own", "spec": {}, **job})
    return JobRequest(caller=caller, request=request, idempotency_key=key)


def plain(answers: Sequence[object]) -> list[object]:
    """Replies without the job's place, which one that was submitted with it may have taken; errors by their text."""
    return [
        (answer[0].model_copy(update={"waiting_because": None}), answer[1])
        if isinstance(answer, tuple)
        else str(answer)
        if isinstance(answer, GiornataError)
        else answer
        for answer in answers
    ]


def test_submits_together_come_out_as_one_by_one(twins: list[StoreRig]) -> None:  # noqa: F811
    submissions = [
        asked(ANN),
        asked(ANN, kind="train"),
        asked(ANN, priority=3),
        asked(ANN, kind="x-other", min_vram_bytes=10**10),
        asked(ANN),
        asked(ANN, key="key-1"),
        asked(ANN, key="key-2", name="named"),
        asked(BOB),
        asked(BOB),
    ]
    answers = []
    for rig, at_once in zip(twins, (True, False), strict=True):
        rig.add_project("ann")
        rig.add_project("bob")
        rig.claim(1, kinds=("x-own",))  # a node that waits for what some of them are
        parts = [submissions] if at_once else [[each] for each in submissions]
        answers.append([answer for part in parts for answer in submit_each(rig.ctx, part)])
        answers[-1] += submit_each(rig.ctx, [asked(ANN, key="key-1"), asked(ANN, key="key-2")])
    together, alone = twins
    assert plain(answers[0]) == plain(answers[1])
    assert told(together) == told(alone)
    assert isinstance(answers[0][1], InvalidInput), "the spec of train is empty"
    of_bob = [answer[0] for answer in answers[0] if isinstance(answer, tuple) and answer[0].project_id == "bob"]
    assert of_bob == [get_job(together.ctx, BOB, job.id) for job in of_bob], "their places are told, too"
    assert len({job.waiting_because for job in of_bob}) == 2
    created = [answer[1] for answer in answers[0] if not isinstance(answer, GiornataError)]
    assert created == [True] * 8 + [False], "of the last two one has its job, the other one another body"
    turns = [row["turn"] for row in together.rows(schema.jobs, project_id="ann", kind="x-own", priority=0)]
    assert len(set(turns)) == len(turns) == 4


def test_submits_to_a_project_with_a_budget_count_one_another(rig: StoreRig) -> None:
    rig.add_project("ann")
    root = Caller(project_id="ann", scopes=Scope.ADMIN.reach, key_id="key_of_ann")
    set_project_budget(rig.ctx, ROOT, "ann", SetBudget(budget_micro_usd=1_000))
    several = [asked(root, budget_micro_usd=600), asked(root, budget_micro_usd=300), asked(BOB)]
    rig.add_project("bob")
    assert [type(answer) for answer in submit_each(rig.ctx, several)] == [tuple] * 3
    with pytest.raises(OverBudget):
        submit_each(rig.ctx, [asked(root, budget_micro_usd=60), asked(root, budget_micro_usd=600), asked(BOB)])
    assert len(rig.rows(schema.jobs)) == 3, "and nothing of them is kept"


def test_completes_together_come_out_as_one_by_one(twins: list[StoreRig]) -> None:  # noqa: F811
    answers = []
    for rig, at_once in zip(twins, (True, False), strict=True):
        leases = seven_leases(rig)
        done = [Completion(attempt_id=each.attempt_id, report=CompleteAttempt(step=7)) for each in leases]
        done[1] = Completion(attempt_id=done[1].attempt_id, report=CompleteAttempt(step=7, artifacts=("model",)))
        done[2] = Completion(attempt_id=done[2].attempt_id, report=CompleteAttempt(step=7, artifacts=("model",)))
        done.append(Completion(attempt_id="att_none", report=CompleteAttempt(step=1)))
        parts = [done] if at_once else [[each] for each in done]
        answers.append([answer for part in parts for answer in complete_each(rig.ctx, part)])
        answers[-1] += complete_each(rig.ctx, [done[0]])
    together, alone = twins
    assert plain(answers[0]) == plain(answers[1])
    assert told(together) == told(alone)
    kinds = [type(answer) for answer in answers[0] if isinstance(answer, GiornataError)]
    assert kinds == [Conflict, LeaseLost, LeaseLost]


def seven_leases(rig: StoreRig) -> list[Lease]:
    """One with an artifact, one that has ended, one of a job that crashed elsewhere before."""
    crashed = rig.add_job(interrupted=True)
    first = rig.lease(9)
    assert first.job_id == crashed
    fail(rig.ctx, first.attempt_id, FailAttempt(reason=Reason.CRASHED, step=1, message="gone"))
    for _ in range(6):
        rig.add_job()
    leases = [rig.lease(number) for number in range(1, 8)]
    assert leases[0].job_id == crashed
    rig.artifact(leases[1], "model")
    fail(rig.ctx, leases[3].attempt_id, FailAttempt(reason=Reason.NODE_DISK, step=1, message="full"))
    rig.clock.advance_s(5)
    return leases
