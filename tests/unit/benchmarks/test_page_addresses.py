"""Each route of the dashboard that shows something is measured by `benchmarks.pages`, or said not to be."""

import pytest
from benchmarks.rig.page_addresses import addresses
from starlette.routing import Route

from giornata.dashboard.app import PAGES


def test_each_page_of_the_dashboard_has_an_address_and_each_address_a_page() -> None:
    found = addresses(PAGES)
    assert len(found) > 50
    assert not [path for path in found.values() if "{" in path]


def test_new_route_and_missing_one_end_the_measurement() -> None:
    new = Route("/projects/{project_id}/weather", lambda _request: None, methods=["GET"])
    with pytest.raises(LookupError, match=r"no address of \['/projects/{project_id}/weather'\]"):
        addresses([*PAGES, new])
    with pytest.raises(LookupError, match=r"names \['/sign-in'\]"):
        addresses(PAGES[1:])
