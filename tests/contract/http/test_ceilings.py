"""What the hottest requests cost on SQLite, against a table."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.ceilings import CEILINGS, TOGETHER
from tests.fixtures.databases import new_sqlite
from tests.fixtures.hot_path import Cost, costs_alone, hot_path

from giornata.control.ports.store import Store, Transaction


@pytest.mark.parametrize("requests", [1, TOGETHER])
def test_hot_requests_cost_what_the_table_says(tmp_path: Path, requests: int) -> None:
    costs = costs_alone(new_sqlite(tmp_path), tmp_path, requests)
    ceilings = CEILINGS["sqlite", requests]
    assert costs.keys() == ceilings.keys()
    found = {name: said for name, cost in costs.items() if (said := ceilings[name].complaints(cost))}
    assert not found, found


class Chatty:
    """A store whose transactions begin with a statement more."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def begin(self) -> Iterator[Transaction]:
        """As the store's own."""
        with self._store.begin() as tx:
            tx.connection.exec_driver_sql("SELECT 1")
            yield tx


def test_a_statement_more_in_each_transaction_is_seen_in_every_row_of_the_table(tmp_path: Path) -> None:
    """The proof that the table can fail."""

    def chatty(store: Store) -> Any:
        return Chatty(store)

    with hot_path(new_sqlite(tmp_path), tmp_path, 1, behind=chatty) as path:
        costs = path.costs()
    for name, ceiling in CEILINGS["sqlite", 1].items():
        assert any(said.startswith("statements") for said in ceiling.complaints(costs[name])), name


def test_a_call_more_than_the_ceiling_is_a_complaint() -> None:
    ceiling = CEILINGS["sqlite", 1]["claim"]
    cost = Cost(transactions=ceiling.transactions, rows=ceiling.rows, statements=["SELECT 1"] * ceiling.statements)
    cost.python_calls = ceiling.python_calls
    assert ceiling.complaints(cost) == []
    cost.python_calls += 1
    assert "Python calls" in ceiling.complaints(cost)[0]
