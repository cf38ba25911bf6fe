"""How often Ray Train itself may be lost."""

from giornata.pretrain.fit import MOST_FRUITLESS, Setbacks


def test_without_progress_it_is_given_up() -> None:
    setbacks = Setbacks()
    assert [setbacks.bearable(0) for _ in range(MOST_FRUITLESS)] == [True] * (MOST_FRUITLESS - 1) + [False]


def test_as_long_as_checkpoints_come_it_is_begun_anew() -> None:
    setbacks = Setbacks()
    assert all(setbacks.bearable(step) for step in range(10 * MOST_FRUITLESS))


def test_progress_forgives_what_was() -> None:
    setbacks = Setbacks()
    assert [setbacks.bearable(step) for step in (0, 0, 5, 5, 5)] == [True, True, True, True, False]
