"""Whether the node asks for another job beside those at work."""

from dataclasses import dataclass
from typing import Any, cast

import pytest

from giornata.agent.companions import wanted_key
from giornata.agent.engine_process import EngineProcess
from giornata.protocol.pipe import Seats


@dataclass
class Saying:
    """An engine that has said so."""

    seats: Seats | None
    alive: bool = True

    def is_alive(self) -> bool:
        return self.alive


def wanted(seats: Seats | None, engaged: tuple[str, ...], *, places: int = 8, alive: bool = True) -> str | None:
    engine: Any = Saying(seats, alive)
    return wanted_key(cast(EngineProcess, engine), engaged, places=places)


TWO_FREE = Seats(key="k", free=2, attempts=("a", "b"))


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
def test_those_on_their_way_take_a_place_and_those_who_are_counted_do_not(
    engaged: tuple[str, ...], key: str | None
) -> None:
    assert wanted(TWO_FREE, engaged) == key


def test_nobody_is_wanted_by_an_engine_that_is_full_silent_or_gone() -> None:
    assert wanted(Seats(key="k", free=0, attempts=("a",)), ("a",)) is None
    assert wanted(None, ("a",)) is None
    assert wanted(TWO_FREE, ("a", "b"), alive=False) is None
    assert wanted_key(None, ("a", "b"), places=8) is None


def test_the_node_has_the_last_word_on_how_many() -> None:
    assert wanted(TWO_FREE, ("a", "b"), places=3) == "k"
    assert wanted(TWO_FREE, ("a", "b"), places=2) is None
