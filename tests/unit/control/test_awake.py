"""Who was not heard of while nobody listened has not been silent."""

from giornata.control.memory.process_cache import ProcessCache

BREAK_MS = 300_000


def test_looks_without_a_long_break_count_from_the_first():
    memory = ProcessCache()
    assert [memory.awake_since_ms(at_ms=at_ms, break_ms=BREAK_MS) for at_ms in (1000, 200_000, 500_000)] == [1000] * 3


def test_after_a_long_break_they_count_from_the_next():
    memory = ProcessCache()
    memory.awake_since_ms(at_ms=1000, break_ms=BREAK_MS)
    assert memory.awake_since_ms(at_ms=3_601_000, break_ms=BREAK_MS) == 3_601_000
    assert memory.awake_since_ms(at_ms=3_700_000, break_ms=BREAK_MS) == 3_601_000


def test_a_new_process_has_just_woken():
    assert ProcessCache().awake_since_ms(at_ms=77, break_ms=BREAK_MS) == 77
