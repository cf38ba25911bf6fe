"""What a lease of 16 pictures costs the database, alone: claims and ends of several nodes share their transactions.

Statements, transactions and rows are exact; `tests/fixtures/ceilings.py` says why. A picture's own rows are two: one
change when it is leased, and one when it has its result.
"""

from typing import Any

from tests.fixtures.hot_path import Cost, counted_statements, told_at_once
from tests.fixtures.pictures import Studio
from tests.fixtures.work import Workshop

from giornata.control.attempts.complete import complete
from giornata.control.pictures.picture_uploads import picture_uploads
from giornata.protocol.pictures import PictureUploads
from giornata.protocol.work import CompleteAttempt

LEASE = 16
CEILINGS = {  # statements, transactions, rows; four statements and a transaction of the claim are a look before it
    "sqlite": {"claim": (11, 2, 19), "uploads": (1, 1, 0), "results": (50, 2, 32), "complete": (8, 1, 2)},
    "postgresql": {"claim": (9, 2, 19), "uploads": (1, 1, 0), "results": (2, 2, 17), "complete": (8, 1, 2)},
}


def test_a_lease_of_sixteen_pictures_costs_what_the_table_says(shop: Workshop) -> None:
    studio = Studio(shop)
    studio.order(3 * LEASE)
    costs = {name: Cost() for name in CEILINGS["sqlite"]}
    with told_at_once(shop.store):
        for _ in range(2):  # the first one fills the caches, and begins the order
            _whole_lease(studio, costs)
    found = {name: (len(cost.statements), cost.transactions, cost.rows) for name, cost in costs.items()}
    assert found == CEILINGS[shop.store.dialect_name], {name: cost.statements for name, cost in costs.items()}


def _whole_lease(studio: Studio, costs: dict[str, Cost]) -> None:
    store: Any = studio.shop.store
    with counted_statements(store, costs["claim"]):
        lease = studio.lease(1, most=LEASE)
    drawn = tuple(studio.upload(lease, each) for each in lease.pictures)
    with counted_statements(store, costs["uploads"]):
        picture_uploads(studio.ctx, lease.attempt_id, PictureUploads(pictures=drawn))
    with counted_statements(store, costs["results"]):
        assert len(studio.report(lease, list(drawn)).accepted) == LEASE
    with counted_statements(store, costs["complete"]):
        complete(studio.ctx, lease.attempt_id, CompleteAttempt(step=0))
