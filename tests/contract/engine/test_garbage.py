import gc

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
def no_ring() -> None:
    Ring.alive = 0


def test_garbage_collector_is_disabled_within_kept_for_good() -> None:
    with kept_for_good():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_objects_made_within_kept_for_good_are_frozen_and_later_ones_collected() -> None:
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
