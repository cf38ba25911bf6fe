"""What the hottest requests cost on PostgreSQL, against the table of `tests/fixtures/ceilings.py`."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.ceilings import CEILINGS, TOGETHER
from tests.fixtures.hot_path import costs_alone


@pytest.mark.parametrize("requests", [1, TOGETHER])
def test_hot_requests_cost_what_the_table_says(
    new_postgres: Callable[[], str], tmp_path: Path, requests: int
) -> None:
    costs = costs_alone(new_postgres(), tmp_path, requests)
    ceilings = CEILINGS["postgresql", requests]
    found = {name: said for name, cost in costs.items() if (said := ceilings[name].complaints(cost))}
    assert not found, found
