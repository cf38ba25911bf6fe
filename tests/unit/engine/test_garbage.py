import gc
from collections.abc import Iterator

import pytest

from giornata.engine.process_setup import kept_for_good


class Ring:
    """Garbage that only a search finds."""

    alive = 0

    def __init__(self) -> None:
        self.itself = self
        Ring.alive += 1

    def __del__(self) -> None:
        Ring.alive -= 1


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    Ring.alive = 0
    yield
    gc.unfreeze()
    gc.collect()


def test_nobody_searches_while_things_are_loaded() -> None:
    with kept_for_good():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_was_loaded_is_never_looked_at_again_and_what_came_later_is() -> None:
    with kept_for_good():
        Ring()
    gc.collect()
    assert Ring.alive == 1
    Ring()
    gc.collect()
    assert Ring.alive == 1


def test_the_search_goes_on_after_a_failure() -> None:
    with pytest.raises(OSError, match="no device"), kept_for_good():
        raise OSError("no device")
    assert gc.isenabled()
