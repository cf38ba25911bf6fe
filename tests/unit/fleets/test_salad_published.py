"""The driver against a mock server that is nothing but the published document."""

import uuid
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from tests.fixtures.published_mock import PublishedMock
from tests.fixtures.published_spec import PublishedSpec, read_spec, spec_file
from tests.fixtures.salad_cloud import PREFIX, SPEC
from tests.fixtures.salad_documents import GPU_CLASSES
from tests.fixtures.salad_rented import SOME

from giornata.domain.errors import FleetRefused, FleetUnavailable, InstanceGone
from giornata.fleets.opening import FleetDependencies
from giornata.fleets.salad import SaladOptions, open_fleet
from giornata.fleets.salad.client import RateLimiter, RetryPauses
from giornata.fleets.salad.driver import SaladFleet

INSTANCE = str(uuid.UUID(int=7))
SEEDS = range(8)


@pytest.fixture(scope="module")
def spec() -> PublishedSpec:
    path = spec_file(SPEC)
    if path is None:
        pytest.skip(f"{SPEC} is not at hand: the driver is NOT tried on a mock server of it (set GIORNATA_SPECS)")
    return PublishedSpec(read_spec(path), prefix=PREFIX)


def fleet_on(mock: PublishedMock) -> SaladFleet:
    """A driver whose provider is the mock."""
    dependencies = FleetDependencies(
        server_url=lambda: "https://giornata.example",
        node_key=lambda: "gk_00000000_node",
        data=Path("/nowhere"),
        environment={"SALAD_API_KEY": "any"},
        now_ms=lambda: 0,
    )
    fleet = open_fleet(
        "loras",
        SaladOptions(**(SOME | {"country_codes": ["no"], "command": ["giornata", "node"]})),
        dependencies,
        transport=httpx.MockTransport(mock.answer),
        pauses=RetryPauses(sleep=lambda _: None, wall_s=lambda: 0.0, chance=lambda: 0.0),
        rate_limiter=RateLimiter(per_minute=1e9, burst=10**9, monotonic_s=lambda: 0.0, sleep=lambda _: None),
    )
    fleet.monotonic_s = lambda: 0.0
    return fleet


def verbs(fleet: SaladFleet) -> dict[str, Any]:
    """Everything that the control plane asks of the driver."""
    return {
        "desired 0": lambda: fleet.desired(0),
        "desired 1": lambda: fleet.desired(1, leaving=[INSTANCE]),
        "desired 700": lambda: fleet.desired(700),
        "list": fleet.list,
        "reallocate": lambda: fleet.reallocate(INSTANCE, reason="slow"),
        "drain": lambda: fleet.drain(INSTANCE),
        "price": fleet.price,
        "outdated": fleet.outdated,
        "renew": lambda: fleet.renew([INSTANCE]),
        "shortage": fleet.shortage,
    }


VERBS = sorted(verbs(fleet_on(PublishedMock(None, None))))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("verb", VERBS)
def test_the_document_refuses_no_request_of_a_verb(spec, verb, seed):
    pinned = {"list_gpu_classes": {"items": GPU_CLASSES}}
    mock = PublishedMock(spec, Random(seed), pinned=pinned, succeeds=True)
    with suppress(FleetRefused, FleetUnavailable, InstanceGone):
        verbs(fleet_on(mock))[verb]()
    assert mock.refused == []
    assert mock.answered, "something was asked"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("verb", VERBS)
def test_driver_verbs_on_any_published_response_succeed_or_raise_fleet_errors(spec, verb, seed):
    mock = PublishedMock(spec, Random(seed))
    with suppress(FleetRefused, FleetUnavailable, InstanceGone):
        verbs(fleet_on(mock))[verb]()
    assert mock.refused == []
    for request, response in mock.answered:
        spec.response(request, response)
