"""The polls of `giornata login`: how long they wait, and how they end."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fixtures.people import browser_of, new_person
from tests.fixtures.served import Served, serving

from giornata.client.device_sign_in import DeviceSignIn
from giornata.domain.errors import Forbidden, InvalidInput, NotFound, Unauthenticated, Unreachable
from giornata.protocol.account.people import Role
from giornata.protocol.account.sign_in import AuthorizeDevice, DeviceAuthorization


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as running:
        yield running


class Waits:
    """Counts what would be slept, and lets the person do something at one of the waits."""

    def __init__(self, at: int = 0, act: Callable[[], object] = lambda: None) -> None:
        self.slept: list[float] = []
        self._at, self._act = at, act

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == self._at:
            self._act()

    def now_s(self) -> float:
        return sum(self.slept)


def device_at(url: str, waits: Waits) -> DeviceSignIn:
    return DeviceSignIn(url=url, sleep=waits.sleep, monotonic_s=waits.now_s)


def decide(served: Served, begun: DeviceAuthorization, verb: str) -> Callable[[], object]:
    eve = browser_of(served, new_person(served.ctx, "eve", {"default": Role.MEMBER}))
    return lambda: eve.call("POST", f"/v1/device/{verb}", json={"user_code": begun.user_code})


def test_key_comes_with_the_poll_after_the_approval_and_polls_slow_down_when_told(served: Served) -> None:
    begun = DeviceSignIn(url=f"{served.url}/").begin(AuthorizeDevice(scope="jobs:read", host_name="laptop"))
    waits = Waits(4, decide(served, begun, "approve"))
    token = device_at(served.url, waits).wait(begun)
    assert (token.email, token.scope) == ("eve@example.com", "jobs:read")
    # No real time passes between the polls here, so that each but the first comes too soon.
    assert waits.slept == [5, 5, 10, 15]


def test_denial_ends_the_wait(served: Served) -> None:
    begun = DeviceSignIn(url=served.url).begin(AuthorizeDevice())
    with pytest.raises(Forbidden, match="denied"):
        device_at(served.url, Waits(1, decide(served, begun, "deny"))).wait(begun)


def test_device_poll_ends_when_the_code_expires(served: Served) -> None:
    begun, waits = DeviceSignIn(url=served.url).begin(AuthorizeDevice()), Waits()
    with pytest.raises(Unauthenticated, match="in time"):
        device_at(served.url, waits).wait(begun)
    assert begun.expires_in <= sum(waits.slept) <= begun.expires_in + 60


def test_server_that_is_away_for_a_while_is_asked_again(served: Served, tmp_path: Path) -> None:
    begun, waits = DeviceSignIn(url=served.url).begin(AuthorizeDevice()), Waits()
    with pytest.raises(Unauthenticated):
        device_at("http://127.0.0.1:9", waits).wait(begun)
    assert waits.slept[:4] == [5, 10, 20, 40]
    with pytest.raises(Unreachable):
        DeviceSignIn(url="http://127.0.0.1:9").begin(AuthorizeDevice())


def test_refusal_of_the_first_call_says_what_is_wrong(served: Served) -> None:
    with pytest.raises(InvalidInput, match="scope"):
        DeviceSignIn(url=served.url).begin(AuthorizeDevice(scope="node"))
    with pytest.raises(NotFound):
        DeviceSignIn(url=f"{served.url}/elsewhere").begin(AuthorizeDevice())
