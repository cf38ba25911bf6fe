"""Claims and heartbeats that are done in one transaction: each comes out as it would have alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.contexts import CountedIds, FinePictures, ManualClock
from tests.fixtures.postgres import (  # noqa: F401 - fixtures
    empty_postgres,
    new_postgres,
    postgres_server,
    postgres_template,
)
from tests.fixtures.store_rig import NODE_CALLER, StoreRig

from giornata.blobs.filesystem import FilesystemBlobs
from giornata.control.attempts.claiming.claim import Asked, claim_each
from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.attempts.ending.reported_ends import fail, release
from giornata.control.attempts.heartbeat import Beat, heartbeat_each
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.domain.errors import Conflict, GiornataError, LeaseLost
from giornata.domain.jobs.reasons import Reason
from giornata.domain.jobs.routing import AFFINITY_WINDOW
from giornata.domain.machines.health import newcomer
from giornata.protocol.events import EventType
from giornata.protocol.node.work import (
    Claim,
    ClaimReply,
    FailAttempt,
    Heartbeat,
    HeartbeatReply,
    Lease,
    Order,
    ReleaseAttempt,
)
from giornata.protocol.project.admin import Scope
from giornata.protocol.specs import CANARY_KIND
from giornata.store import schema
from giornata.store.database.database import open_store
from giornata.store.database.migrate import migrate

Rows = dict[str, list[Mapping[str, Any]]]


@pytest.fixture
def twins(request: pytest.FixtureRequest, tmp_path: Path, database_kind: str) -> list[StoreRig]:
    """Two worlds that are equal, and stay so while the same is done in both."""

    def twin(number: int) -> StoreRig:
        if database_kind == "postgresql":
            make: Callable[[], str] = request.getfixturevalue("new_postgres")
            url = make()
        else:
            url = f"sqlite:///{tmp_path}/twin-{number}.db"
            migrate(url)
        store, clock = open_store(url), ManualClock()
        request.addfinalizer(store.close)
        blobs = FilesystemBlobs(
            tmp_path / "blobs", signing_key=b"k" * 32, base_url="http://blobs.invalid", clock=clock
        )
        ctx = Context(store=store, blobs=blobs, clock=clock, names=CountedIds(), pictures=FinePictures())
        return StoreRig(ctx, store, clock)

    return [twin(1), twin(2)]


@pytest.fixture(params=["sqlite", "postgresql"])
def database_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


def asked(rig: StoreRig, number: int, *, request_id: str = "request-1", **claim: Any) -> Asked:
    """A claim of node `number`, for everything of kind train unless said otherwise."""
    caller, node = claim.pop("caller", NODE_CALLER), rig.node(number, machine=claim.pop("machine", None))
    wanted = {"kinds": ("train",), **claim}
    return Asked(caller=caller, claim=Claim(request_id=request_id, node=node, **wanted))


def told(rig: StoreRig) -> Rows:
    """The whole database; the events job by job, for those of different jobs may come in another order."""
    rows = rig.whole_database()
    rows["events"] = [
        {**event, "id": None} for event in sorted(rows["events"], key=lambda row: (row["job_id"], row["id"]))
    ]
    return {name: rows[name] for name in rows if name not in {"signing_keys", "installation"}}


def plain(reply: object) -> object:
    """A reply without its signatures; an error by its text."""
    if isinstance(reply, GiornataError):
        return type(reply), str(reply)
    if isinstance(reply, ClaimReply) and reply.lease is not None:
        return reply.model_copy(update={"lease": reply.lease.model_copy(update={"token": "", "checkpoints": ()})})
    return reply


def a_queue_with_everything(rig: StoreRig) -> list[Asked]:
    """Jobs of several kinds, one banned for a machine, one whose node fell silent, a node that is draining."""
    silent = rig.add_job(interrupted=True)
    assert rig.lease(9).job_id == silent
    rig.clock.advance_s(100)
    assert lapse_leases(rig.ctx) == 1
    banned = rig.add_job(priority=5)
    for column in ({}, {"model_key": "model-b"}, {"kind": "x-other"}, {}, {"joint_key": "k"}, {"joint_key": "k"}):
        rig.add_job(**column)
    rig.claim(8, kinds=("x-none",))
    with rig.store.begin() as tx:
        tx.bans.ban(banned, "machine-1", Reason.CRASHED, at_ms=1)
        tx.connection.execute(schema.nodes.update().where(schema.nodes.c.id == "node_00000008").values(draining=True))
    rig.add_project("proj_b")
    foreign = Caller(project_id="proj_b", scopes=Scope.NODE.reach, key_id="key_b")
    return [
        asked(rig, 1),
        asked(rig, 2),
        asked(rig, 3, held_models=("model-b",)),
        asked(rig, 9, request_id="request-9", caller=foreign),
        asked(rig, 8, request_id="request-8"),
        asked(rig, 4, kinds=("x-none",)),
        asked(rig, 11, joint_key="k"),
        asked(rig, 12, joint_key="none has it"),
        asked(rig, 13, joint_key="k", held_models=("model-b",)),
        asked(rig, 14, joint_key="k"),
        asked(rig, 5, caller=foreign),
        asked(rig, 6),
        asked(rig, 7),
        asked(rig, 10),
    ]


def one_by_one(rig: StoreRig, claims: Sequence[Asked]) -> list[object]:
    return [reply for claim in claims for reply in claim_each(rig.ctx, [claim])]


def test_claims_together_come_out_as_one_by_one(twins: list[StoreRig]) -> None:
    together, alone = twins
    claims = a_queue_with_everything(together)
    assert claims == a_queue_with_everything(alone)
    replies = claim_each(together.ctx, claims)
    assert [plain(reply) for reply in replies] == [plain(reply) for reply in one_by_one(alone, claims)]
    assert told(together) == told(alone)
    taken = [reply.lease.job_id for reply in replies if isinstance(reply, ClaimReply) and reply.lease is not None]
    assert len(taken) == len(set(taken)) == 7
    others = [reply if isinstance(reply, Conflict) else reply.reason for reply in replies]
    assert [type(other) for other in others].count(Conflict) == 1
    assert {other for other in others if isinstance(other, str)} >= {"draining", "no-such-kind", "no-such-companion"}
    # All of them again, in another order: who has a lease has it still, and nobody gets a second one.
    again = claim_each(together.ctx, claims[::-1])[::-1]
    for before, after in zip(replies, again, strict=True):
        if isinstance(before, ClaimReply) and before.lease is not None:
            assert isinstance(after, ClaimReply)
            assert after.lease is not None
            assert after.lease.attempt_id == before.lease.attempt_id
        else:
            assert plain(after) == plain(before)
    assert len(together.rows(schema.attempts)) == 8


def two_for_a_canary(rig: StoreRig) -> list[Asked]:
    """Both nodes are of one machine on probation and offer the canary."""
    rig.add_job()
    fail(rig.ctx, rig.lease(1).attempt_id, FailAttempt(reason=Reason.NODE_DRIVER, message="it broke"))
    return [asked(rig, number, machine="machine-1", kinds=("train", CANARY_KIND)) for number in (1, 2)]


def one_after_another_of_no_companion(rig: StoreRig) -> list[Asked]:
    """The machine may begin one job an hour; the first of its two nodes asks for a companion that is not there."""
    _limit(rig, "train")
    rig.add_job()
    return [asked(rig, 2, machine="machine-1", joint_key="none has it"), asked(rig, 1)]


def one_after_another_of_another_kind(rig: StoreRig) -> list[Asked]:
    """The machine may begin one x-own job an hour; the first of its two nodes may take it, and takes another kind."""
    _limit(rig, "x-own")
    rig.add_job(priority=1)
    rig.add_job(kind="x-own")
    return [asked(rig, 1, kinds=("train", "x-own")), asked(rig, 2, machine="machine-1", kinds=("x-own",))]


def one_after_who_takes_its_silent_job(rig: StoreRig) -> list[Asked]:
    """An attempt of the limited machine has lapsed; another machine takes its job, and the machine asks as well."""
    _limit(rig, "train")
    rig.add_job()
    rig.lease(1)
    rig.clock.advance_s(100)
    assert lapse_leases(rig.ctx) == 1
    rig.add_job()
    return [asked(rig, 2), asked(rig, 1)]


def _limit(rig: StoreRig, kind: str) -> None:
    """machine-1 may begin one attempt of the kind an hour."""
    known = newcomer("machine-1", kind, policy=rig.ctx.policy.health, at_ms=rig.clock.now_ms())
    with rig.store.begin() as tx:
        tx.machines.make_sure(replace(known, quota=1))


@pytest.mark.parametrize(
    ("prepare", "leases"),
    [
        (two_for_a_canary, 1),
        (one_after_another_of_no_companion, 1),
        (one_after_another_of_another_kind, 2),
        (one_after_who_takes_its_silent_job, 2),
    ],
)
def test_claims_of_limited_machines_come_out_as_one_by_one(
    twins: list[StoreRig], prepare: Callable[[StoreRig], list[Asked]], leases: int
) -> None:
    together, alone = twins
    claims = prepare(together)
    assert claims == prepare(alone)
    replies = claim_each(together.ctx, claims)
    assert sum(isinstance(reply, ClaimReply) and reply.lease is not None for reply in replies) == leases
    assert [plain(reply) for reply in replies] == [plain(reply) for reply in one_by_one(alone, claims)]
    assert told(together) == told(alone)


def test_behind_its_bans_a_claim_gets_the_next_job_and_not_a_later_one_of_a_held_model(rig: StoreRig) -> None:
    """What is read for two claims holds the first two jobs, and perhaps some that come much later."""
    queue = [rig.add_job() for _ in range(3)]
    later = rig.add_job(model_key="model-b", turn=10 * AFFINITY_WINDOW)
    with rig.store.begin() as tx:
        for job_id in queue[:2]:
            tx.bans.ban(job_id, "machine-1", Reason.CRASHED, at_ms=1)
    claims = [asked(rig, number, held_models=("model-b",)) for number in (1, 2, 3, 4)]
    replies = [*claim_each(rig.ctx, claims[:2]), *claim_each(rig.ctx, claims[2:])]
    taken = [reply.lease.job_id for reply in replies if isinstance(reply, ClaimReply) and reply.lease is not None]
    assert taken == [queue[2], queue[0], queue[1], later]


def test_a_foreign_node_id_is_no_way_to_another_projects_lease(rig: StoreRig) -> None:
    rig.add_job()
    rig.add_project("proj_b")
    foreign = Caller(project_id="proj_b", scopes=Scope.NODE.reach, key_id="key_b")
    (first,) = claim_each(rig.ctx, [asked(rig, 1)])
    assert isinstance(first, ClaimReply)
    assert first.lease is not None
    before = rig.whole_database()
    (stolen,) = claim_each(rig.ctx, [asked(rig, 1, caller=foreign)])
    assert isinstance(stolen, Conflict)
    assert rig.whole_database() == before


def work_with_everything(rig: StoreRig) -> list[Beat]:
    """Attempts that work, that lapsed, that ended, that are to drain, that were never there."""
    for _ in range(6):
        rig.add_job()
    leases: list[Lease] = [rig.lease(1)]
    rig.clock.advance_s(100)
    assert lapse_leases(rig.ctx) == 1
    rig.clock.advance_s(1)
    # The lapsed job comes first in the queue: nobody else may take it here.
    with rig.store.begin() as tx:
        for number in range(2, 7):
            tx.bans.ban(leases[0].job_id, f"machine-{number}", Reason.CRASHED, at_ms=1)
    leases += [rig.lease(number) for number in range(2, 7)]
    rig.clock.advance_s(10)
    release(rig.ctx, leases[2].attempt_id, ReleaseAttempt(reason=Reason.RELEASED))
    with rig.store.begin() as tx:
        draining = schema.nodes.update().where(schema.nodes.c.id == "node_00000004").values(draining=True)
        tx.connection.execute(draining)
    rig.clock.advance_s(10)
    return [
        Beat(attempt_id=leases[0].attempt_id, said=Heartbeat(step=1)),
        Beat(attempt_id=leases[1].attempt_id, said=Heartbeat(step=3, phase="train", metrics={"loss": 0.5})),
        Beat(attempt_id=leases[2].attempt_id, said=Heartbeat(step=4)),
        Beat(attempt_id=leases[3].attempt_id, said=Heartbeat(held_models=("model-b",), engine_pid=77)),
        Beat(attempt_id="att_never_there", said=Heartbeat()),
        Beat(attempt_id=leases[4].attempt_id, said=Heartbeat(step=0, total_steps=50, phase="load")),
        Beat(attempt_id=leases[5].attempt_id, said=Heartbeat(step=9, total_steps=60, metrics={"loss": 0.1})),
    ]


def test_heartbeats_together_come_out_as_one_by_one(twins: list[StoreRig]) -> None:
    together, alone = twins
    beats = work_with_everything(together)
    assert beats == work_with_everything(alone)
    replies = heartbeat_each(together.ctx, beats)
    singly = [reply for beat in beats for reply in heartbeat_each(alone.ctx, [beat])]
    assert [plain(reply) for reply in replies] == [plain(reply) for reply in singly]
    assert told(together) == told(alone)
    assert [isinstance(reply, LeaseLost) for reply in replies] == [False, False, True, False, True, False, False]
    assert [reply.order for reply in replies if isinstance(reply, HeartbeatReply)].count(Order.DRAIN) == 1
    events = [row["type"] for row in together.rows(schema.events)]
    assert events.count(EventType.ATTEMPT_FIRST_STEP) == 3
    assert events.count(EventType.ATTEMPT_RENEWED) == 1
