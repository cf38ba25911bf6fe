"""Whether the node asks for another job beside those at work."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from tests.contract.agent.fake_node_api import lease

from giornata.agent.agent import MOST_PICTURE_LEASES
from giornata.agent.claiming import Claiming, Companions, FurtherWork, JoiningJob, SentClaim, wanted_key
from giornata.agent.engines.engine_process import EngineProcess
from giornata.domain.jobs.attempt import most_leases
from giornata.protocol.node.pipe import FreePlaces
from giornata.protocol.node.work import ClaimReply, Lease


@dataclass
class Saying:
    """An engine that has said so."""

    free_places: FreePlaces | None
    alive: bool = True

    def is_alive(self) -> bool:
        return self.alive


def wanted(
    free_places: FreePlaces | None,
    engaged: tuple[str, ...],
    *,
    places: int = 8,
    uploading: int = 0,
    alive: bool = True,
) -> str | None:
    engine: Any = Saying(free_places, alive)
    leases = len(engaged) + uploading
    return wanted_key(cast(EngineProcess, engine), engaged, places=places, leases=leases)


JOINING = JoiningJob(joint_key="k")
TWO_FREE = FreePlaces(key="k", free=2, attempts=("a", "b"))


@pytest.mark.parametrize(
    ("engaged", "key"),
    [
        (("a", "b"), "k"),
        (("a", "b", "fetching"), "k"),
        (("a", "b", "fetching", "started"), None),
        (("b", "fetching"), "k"),  # a has ended meanwhile: the engine will say so
        (("fetching",), None),  # nobody whom it could join is left
        ((), None),
    ],
)
def test_wanted_key_counts_attempts_being_fetched_as_taken_places(engaged: tuple[str, ...], key: str | None) -> None:
    assert wanted(TWO_FREE, engaged) == key


def test_wanted_key_is_none_when_engine_is_full_silent_or_gone() -> None:
    assert wanted(FreePlaces(key="k", free=0, attempts=("a",)), ("a",)) is None
    assert wanted(None, ("a",)) is None
    assert wanted(TWO_FREE, ("a", "b"), alive=False) is None
    assert wanted_key(None, ("a", "b"), places=8, leases=2) is None


def test_the_node_has_the_last_word_on_how_many() -> None:
    assert wanted(TWO_FREE, ("a", "b"), places=3) == "k"
    assert wanted(TWO_FREE, ("a", "b"), places=2) is None


def test_a_node_asks_for_no_more_leases_than_a_server_gives_it() -> None:
    assert most_leases(3) == 6
    assert wanted(TWO_FREE, ("a", "b"), places=3, uploading=3) == "k"
    assert wanted(TWO_FREE, ("a", "b"), places=3, uploading=4) is None
    assert most_leases(1) >= MOST_PICTURE_LEASES


@dataclass
class Asking:
    """A server that has nothing, unless `found` says so."""

    now_s: float = 0.0
    found: Lease | None = None
    asked_at_s: list[float] = field(default_factory=list)

    def fresh_delays(self) -> Iterator[float]:
        return itertools.repeat(60.0)

    def ask(self, wanted: FurtherWork | None) -> SentClaim:
        return SentClaim(claim=cast(Any, wanted), sent_at_s=self.now_s)

    def send(self, asked: SentClaim) -> ClaimReply:
        self.asked_at_s.append(self.now_s)
        return ClaimReply(lease=self.found)

    def pause_s(self, companions: Companions) -> float:
        """How long it takes from this claim to the next."""
        begun_s = self.now_s
        assert companions.ask(JOINING) is not None
        while companions.due_in_s > 0:
            assert companions.ask(JOINING) is None
            self.now_s += 0.1
        return self.now_s - begun_s


def test_companion_claims_back_off_while_none_is_found() -> None:
    asking = Asking()
    companions = Companions(
        cast(Claiming, asking), every_s=2.0, rng=random.Random(1), monotonic_s=lambda: asking.now_s
    )
    assert companions.ask(None) is None
    pauses_s = [asking.pause_s(companions) for _ in range(6)]
    for pause_s, bound_s in zip(pauses_s, (2, 4, 8, 10, 10, 10), strict=True):
        assert bound_s / 2 <= pause_s <= bound_s + 0.2
    asking.found = Lease.model_validate(lease())
    assert asking.pause_s(companions) <= 2.2
