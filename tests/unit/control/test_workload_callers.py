"""Callers that come with a provider's token: how long they are remembered."""

from typing import Any

import pytest
from tests.fixtures.contexts import START_MS, ManualClock

from giornata.control.access.authenticate import authenticate, remembered
from giornata.control.access.permissions import require_same_workload
from giornata.control.context import Context
from giornata.control.ports.identities import WorkloadIdentity
from giornata.domain.errors import Forbidden, Unauthenticated
from giornata.protocol.project.admin import Scope

TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJtIn0.c2lnbmF0dXJl"


class Identities:
    """Knows one token until it runs out."""

    def __init__(self, clock: ManualClock, life_ms: int) -> None:
        self.asked, self._clock, self._until_ms = 0, clock, clock.now_ms() + life_ms

    def recognize(self, token: str) -> WorkloadIdentity:
        self.asked += 1
        if token != TOKEN or self._clock.now_ms() >= self._until_ms:
            raise Unauthenticated("no")
        return WorkloadIdentity(fleet="night", machine_id="m", expires_at_ms=self._until_ms)


def context_with_identities(life_ms: int = 300_000) -> tuple[Context, Identities, ManualClock]:
    clock = ManualClock(START_MS)
    identities = Identities(clock, life_ms)
    nothing: Any = None
    ctx = Context(store=nothing, clock=clock, names=nothing, blobs=nothing, pictures=nothing, identities=identities)
    return ctx, identities, clock


def test_d100_a_token_is_looked_at_once_while_it_is_good():
    ctx, identities, clock = context_with_identities()
    callers = []
    for _ in range(10):
        callers.append(authenticate(ctx, TOKEN))
        clock.advance_s(29)
    assert identities.asked == 1
    assert {(*each.scopes, each.project_id, each.serves_all_projects) for each in callers} == {
        (Scope.NODE, "default", True)
    }


def test_d102_identity_token_is_forgotten_when_it_expires():
    ctx, identities, clock = context_with_identities(life_ms=60_000)
    authenticate(ctx, TOKEN)
    clock.advance_s(59.999)
    assert remembered(ctx, TOKEN) is not None
    clock.advance_s(0.001)
    assert remembered(ctx, TOKEN) is None
    with pytest.raises(Unauthenticated):
        authenticate(ctx, TOKEN)
    assert identities.asked == 2


def test_a_token_that_was_refused_is_not_remembered():
    ctx, identities, _ = context_with_identities()
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            authenticate(ctx, TOKEN[:-1] + "x")
    assert identities.asked == 2


@pytest.mark.parametrize("secret", ["a.b", "a.b.c.d", "..", "a b.c.d", "é.b.c", "x" * 5000])
def test_malformed_token_is_refused_without_asking_provider(secret):
    ctx, identities, _ = context_with_identities()
    with pytest.raises(Unauthenticated):
        authenticate(ctx, secret)
    assert identities.asked == 0


def test_a_token_speaks_for_its_machine_in_its_fleet_only():
    ctx, _, _ = context_with_identities()
    caller = authenticate(ctx, TOKEN)
    require_same_workload(caller, machine_id="m", fleet="night")
    for machine_id, fleet in (("other", "night"), ("m", "day")):
        with pytest.raises(Forbidden):
            require_same_workload(caller, machine_id=machine_id, fleet=fleet)
