"""What a lease of 16 pictures costs the database, alone: several nodes share transactions.

Statements, transactions and rows are exact; `tests/fixtures/ceilings.py` says why. A picture's own rows are two: one
change when it is leased, and one when it has its result. ADR 102 lists the statements, and says what each is for.
"""

import asyncio
import json
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from tests.fixtures.hot_path import Cost, counted_statements, post, told_at_once
from tests.fixtures.picture_rig import NODE, PictureRig
from tests.fixtures.store_rig import StoreRig

from giornata.api.app import create_app
from giornata.control.access.authenticate import authenticate
from giornata.control.access.keys import create_key
from giornata.control.attempts.claiming.claim import Asked, claim_each
from giornata.control.attempts.record_pictures import record_each
from giornata.control.caller import Caller
from giornata.control.pictures.picture_report import PictureReport
from giornata.control.pictures.picture_uploads import picture_uploads
from giornata.domain.generation.picture import LEASE_KIND
from giornata.domain.machines.health import RELIABLE_AFTER, MachineHealth
from giornata.protocol.node.held_models import HeldModels, HeldTier
from giornata.protocol.node.pictures import (
    DrawnPicture,
    PictureLease,
    PictureResults,
    PictureResultsReply,
    PictureUploads,
)
from giornata.protocol.node.work import Claim, ClaimReply
from giornata.protocol.project.admin import ROOT_PROJECT, CreateKey, Scope

LEASE = 16
TOGETHER = 4
MOST_STATEMENTS_A_PICTURE = 0.5
MOST_LOG_RECORDS_A_PICTURE = 10
CEILINGS = {  # statements, transactions, rows
    "sqlite": {"claim": (7, 1, 19), "uploads": (0, 0, 0), "results": (8, 1, 19)},
    "postgresql": {"claim": (5, 1, 19), "uploads": (0, 0, 0), "results": (2, 1, 19)},
}


@pytest.mark.parametrize("reports", [False, True])
def test_a_lease_of_sixteen_pictures_costs_what_the_table_says(rig: StoreRig, reports: bool) -> None:
    assert _costs(rig, 1, reports=reports) == CEILINGS[rig.store.dialect_name]


def test_reports_of_four_nodes_at_once_cost_the_statements_of_one(rig: StoreRig) -> None:
    statements, transactions, rows = _costs(rig, TOGETHER)["results"]
    if rig.store.dialect_name == "postgresql":
        assert (statements, transactions) == CEILINGS["postgresql"]["results"][:2]
    # The order's row is changed once.
    assert (transactions, rows) == (1, TOGETHER * 18 + (1 if rig.store.dialect_name == "postgresql" else TOGETHER))


def test_a_lease_over_http_costs_no_more_than_its_use_cases(rig: StoreRig) -> None:
    costs = {name: Cost() for name in ("claim", "uploads", "results")}
    asyncio.run(_leases_over_http(PictureRig(rig), costs))
    ceilings = CEILINGS[rig.store.dialect_name]
    assert {name: (len(cost.statements), cost.transactions, cost.rows) for name, cost in costs.items()} == ceilings
    if rig.store.dialect_name == "postgresql":
        assert sum(len(cost.statements) for cost in costs.values()) <= MOST_STATEMENTS_A_PICTURE * LEASE


def test_each_picture_of_a_lease_is_changed_in_its_page(rig: StoreRig) -> None:
    if rig.store.dialect_name != "postgresql":
        pytest.skip("only PostgreSQL keeps the version of a row before a change")
    picture_rig = PictureRig(rig)
    picture_rig.order(3 * LEASE)
    _settle_machines(rig, 1)
    costs = {name: Cost() for name in ("claim", "uploads", "results")}
    with told_at_once(rig.store):
        _whole_leases(picture_rig, 1, 0, costs, reports=False)  # it fills the caches, and begins the order
        before = _changes(rig)
        _whole_leases(picture_rig, 1, 1, costs, reports=False)
        after = _changes(rig)
    changed, in_its_page, in_another_page, log_records = (
        end - begin for begin, end in zip(before, after, strict=True)
    )
    # The change by the claim writes to the indexes, and that by the result to none.
    assert (changed, in_its_page, in_another_page) == (2 * LEASE, LEASE, 0)
    assert 0 < log_records <= MOST_LOG_RECORDS_A_PICTURE * LEASE


def _changes(rig: StoreRig) -> tuple[int, ...]:
    """Changes of pictures: all, those that leave the indexes alone, those that move a row to another page. And the
    records of the write-ahead log by this database's connections."""
    with rig.store._writer.connect() as connection:
        connection.execute(sa.text("SELECT pg_stat_clear_snapshot()"))
        return tuple(int(each) for each in connection.execute(_CHANGES).one())


_CHANGES = sa.text(
    "SELECT n_tup_upd, n_tup_hot_upd, n_tup_newpage_upd, (SELECT sum((pg_stat_get_backend_wal(pid)).wal_records) "
    "FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend') "
    "FROM pg_stat_user_tables WHERE relname = 'pictures'"
)


async def _leases_over_http(picture_rig: PictureRig, costs: dict[str, Cost]) -> None:
    """Draw two leases of one node; the costs are those of the second."""
    rig = picture_rig.rig
    picture_rig.order(3 * LEASE)
    _settle_machines(rig, 1)
    root = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_admin")
    key = create_key(rig.ctx, root, CreateKey(scope=Scope.NODE)).secret
    authenticate(rig.ctx, key)
    app = create_app(rig.ctx)
    with told_at_once(rig.store):
        for turn in range(2):
            await _lease_over_http(app, picture_rig, key, turn, costs)


async def _lease_over_http(
    app: FastAPI, picture_rig: PictureRig, key: str, turn: int, costs: dict[str, Cost]
) -> None:
    rig = picture_rig.rig
    claim = _claim(picture_rig, 1, turn, reports=False).model_dump(mode="json")
    with counted_statements(rig.store, costs["claim"]):
        reply = ClaimReply.model_validate_json(await post(app, "/v1/node/claim", key, claim))
    lease = reply.picture_lease
    assert lease is not None and len(lease.pictures) == LEASE
    path = f"/v1/node/attempts/{lease.attempt_id}"
    drawn = [picture_rig.upload(lease, each).model_dump(mode="json") for each in lease.pictures]
    with counted_statements(rig.store, costs["uploads"]):
        await post(app, f"{path}/picture-uploads", lease.token, {"pictures": drawn})
    rig.clock.advance_s(0.1)
    with counted_statements(rig.store, costs["results"]):
        said = await post(app, f"{path}/pictures", lease.token, {"drawn": drawn, "complete": True})
    assert len(json.loads(said)["accepted"]) == LEASE


def _costs(rig: StoreRig, nodes: int, *, reports: bool = False) -> dict[str, tuple[int, int, int]]:
    """The costs of a lease of each of these nodes, reported together."""
    picture_rig = PictureRig(rig)
    picture_rig.order(3 * nodes * LEASE)
    _settle_machines(rig, nodes)
    costs = {name: Cost() for name in ("claim", "uploads", "results")}
    with told_at_once(rig.store):
        for turn in range(2):  # the first one fills the caches, and begins the order
            _whole_leases(picture_rig, nodes, turn, costs, reports=reports)
    return {name: (len(cost.statements), cost.transactions, cost.rows) for name, cost in costs.items()}


def _whole_leases(picture_rig: PictureRig, nodes: int, turn: int, costs: dict[str, Cost], *, reports: bool) -> None:
    store: Any = picture_rig.rig.store
    asked = [
        Asked(caller=NODE, claim=_claim(picture_rig, number, turn, reports=reports)) for number in range(1, nodes + 1)
    ]
    with counted_statements(store, costs["claim"]):
        replies = claim_each(picture_rig.ctx, asked)
    leases = [reply.picture_lease for reply in replies if isinstance(reply, ClaimReply) and reply.picture_lease]
    done = {lease.attempt_id: tuple(picture_rig.upload(lease, each) for each in lease.pictures) for lease in leases}
    with counted_statements(store, costs["uploads"]):
        for attempt_id, drawn in done.items():
            picture_uploads(picture_rig.ctx, attempt_id, PictureUploads(pictures=drawn))
    picture_rig.rig.clock.advance_s(0.1)  # less than the second after which an order is told of again
    with counted_statements(store, costs["results"]):
        answers = record_each(picture_rig.ctx, [_report(lease, done[lease.attempt_id]) for lease in leases])
    assert [len(answer.accepted) for answer in answers if isinstance(answer, PictureResultsReply)] == [LEASE] * nodes


def _claim(picture_rig: PictureRig, number: int, turn: int, *, reports: bool) -> Claim:
    """The claim of a node that `reports` its files: all of them at first, and nothing when they are as before."""
    return Claim(
        request_id=f"draws-{number:06d}-{turn}",
        node=picture_rig.rig.node(number),
        kinds=("generate",),
        max_pictures=LEASE,
        held_version=3 if reports else None,
        held=HeldModels(version=3, added={HeldTier.DISK: ("a" * 64,)}) if reports and turn == 0 else None,
    )


def _report(lease: PictureLease, drawn: tuple[DrawnPicture, ...]) -> PictureReport:
    return PictureReport(attempt_id=lease.attempt_id, results=PictureResults(drawn=drawn, complete=True))


def _settle_machines(rig: StoreRig, nodes: int) -> None:
    with rig.store.begin() as tx:
        for number in range(1, nodes + 1):
            health = MachineHealth(
                machine_id=rig.node(number).machine_id,
                kind=LEASE_KIND,
                since_ms=1,
                scored_at_ms=1,
                quota=rig.ctx.policy.health.quota_per_hour,
                successes_in_a_row=RELIABLE_AFTER,
                proven=True,
            )
            tx.machines.make_sure(health)
