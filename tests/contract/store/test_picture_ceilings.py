"""What a lease of 16 pictures costs the database, alone: several nodes share transactions.

Statements, transactions and rows are exact; `tests/fixtures/ceilings.py` says why. A picture's own rows are two: one
change when it is leased, and one when it has its result.
"""

from typing import Any

from tests.fixtures.hot_path import Cost, counted_statements, told_at_once
from tests.fixtures.pictures import NODE, Studio
from tests.fixtures.work import Workshop

from giornata.control.attempts.claim import Asked, claim_each
from giornata.control.attempts.record_pictures import record_each
from giornata.control.pictures.picture_report import PictureReport
from giornata.control.pictures.picture_uploads import picture_uploads
from giornata.domain.health import RELIABLE_AFTER, MachineHealth
from giornata.domain.picture import LEASE_KIND
from giornata.protocol.pictures import DrawnPicture, PictureLease, PictureResults, PictureResultsReply, PictureUploads
from giornata.protocol.work import Claim, ClaimReply

LEASE = 16
TOGETHER = 4
CEILINGS = {  # statements, transactions, rows
    "sqlite": {"claim": (7, 1, 19), "uploads": (0, 0, 0), "results": (8, 1, 19)},
    "postgresql": {"claim": (5, 1, 19), "uploads": (0, 0, 0), "results": (2, 1, 19)},
}


def test_a_lease_of_sixteen_pictures_costs_what_the_table_says(shop: Workshop) -> None:
    assert _costs(shop, 1) == CEILINGS[shop.store.dialect_name]


def test_reports_of_four_nodes_at_once_cost_the_statements_of_one(shop: Workshop) -> None:
    statements, transactions, rows = _costs(shop, TOGETHER)["results"]
    if shop.store.dialect_name == "postgresql":
        assert (statements, transactions) == CEILINGS["postgresql"]["results"][:2]
    # The order's row is changed once.
    assert (transactions, rows) == (1, TOGETHER * 18 + (1 if shop.store.dialect_name == "postgresql" else TOGETHER))


def _costs(shop: Workshop, nodes: int) -> dict[str, tuple[int, int, int]]:
    """The costs of a lease of each of these nodes, reported together."""
    studio = Studio(shop)
    studio.order(3 * nodes * LEASE)
    _settle_machines(shop, nodes)
    costs = {name: Cost() for name in ("claim", "uploads", "results")}
    with told_at_once(shop.store):
        for turn in range(2):  # the first one fills the caches, and begins the order
            _whole_leases(studio, nodes, turn, costs)
    return {name: (len(cost.statements), cost.transactions, cost.rows) for name, cost in costs.items()}


def _whole_leases(studio: Studio, nodes: int, turn: int, costs: dict[str, Cost]) -> None:
    store: Any = studio.shop.store
    asked = [Asked(caller=NODE, claim=_claim(studio, number, turn)) for number in range(1, nodes + 1)]
    with counted_statements(store, costs["claim"]):
        replies = claim_each(studio.ctx, asked)
    leases = [reply.picture_lease for reply in replies if isinstance(reply, ClaimReply) and reply.picture_lease]
    done = {lease.attempt_id: tuple(studio.upload(lease, each) for each in lease.pictures) for lease in leases}
    with counted_statements(store, costs["uploads"]):
        for attempt_id, drawn in done.items():
            picture_uploads(studio.ctx, attempt_id, PictureUploads(pictures=drawn))
    studio.shop.clock.advance_s(0.1)  # less than the second after which an order is told of again
    with counted_statements(store, costs["results"]):
        answers = record_each(studio.ctx, [_report(lease, done[lease.attempt_id]) for lease in leases])
    assert [len(answer.accepted) for answer in answers if isinstance(answer, PictureResultsReply)] == [LEASE] * nodes


def _claim(studio: Studio, number: int, turn: int) -> Claim:
    return Claim(
        request_id=f"draws-{number:06d}-{turn}",
        node=studio.shop.node(number),
        kinds=("generate",),
        max_pictures=LEASE,
    )


def _report(lease: PictureLease, drawn: tuple[DrawnPicture, ...]) -> PictureReport:
    return PictureReport(attempt_id=lease.attempt_id, results=PictureResults(drawn=drawn, complete=True))


def _settle_machines(shop: Workshop, nodes: int) -> None:
    with shop.store.begin() as tx:
        for number in range(1, nodes + 1):
            health = MachineHealth(
                machine_id=shop.node(number).machine_id,
                kind=LEASE_KIND,
                since_ms=1,
                scored_at_ms=1,
                quota=shop.ctx.policy.health.quota_per_hour,
                successes_in_a_row=RELIABLE_AFTER,
                proven=True,
            )
            tx.machines.make_sure(health)
