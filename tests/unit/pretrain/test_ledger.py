"""Which rows a phase trains, and that nothing is trained twice or lost, whatever was trained before a restart."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from giornata.pretrain.feeding.ledger import TrainedTwice, UseBits, UseLedger
from giornata.pretrain.feeding.rows_of_phase import NumberSet, RowsOfPhase, validation_rows

NUMBERS = st.sets(st.integers(0, 40))


@given(NUMBERS, NUMBERS)
def test_number_sets_are_sets(one: set[int], other: set[int]) -> None:
    left, right = NumberSet.of(one), NumberSet.of(other)
    assert set(left | right) == one | other
    assert set(left - right) == one - other
    assert len(left) == len(one)
    assert left | right == NumberSet.of(one | other)  # one way to write a set
    assert all((number in left) == (number in one) for number in range(-1, 42))


def phase(*, samples: int, shard_rows: tuple[int, ...] = (7, 3, 12), held: int = 0, seed: int = 3) -> RowsOfPhase:
    left_out = validation_rows(seed, shard_rows, held)
    return RowsOfPhase(seed=seed, phase=0, samples=samples, shard_rows=shard_rows, left_out=left_out)


@given(st.integers(1, 80), st.integers(0, 5), st.integers(0, 9))
def test_a_phase_takes_every_row_once_an_epoch(samples: int, held: int, seed: int) -> None:
    rows_of = phase(samples=samples, held=held, seed=seed)
    uses = [(each.epoch, each.shard, row) for each in rows_of.portions() for row in rows_of.in_order(each)]
    assert len(uses) == len(set(uses)) == samples
    by_epoch = Counter(epoch for epoch, _, _ in uses)
    whole = 22 - held
    assert [by_epoch[epoch] for epoch in range(samples // whole)] == [whole] * (samples // whole)
    kept_out = {(shard, row) for shard, rows in rows_of.left_out for row in rows}
    assert len(kept_out) == held
    assert not kept_out & {(shard, row) for _, shard, row in uses}


@given(st.integers(1, 60), st.data())
def test_ledger_remaining_is_exactly_the_untrained_rows(samples: int, data: st.DataObject) -> None:
    rows_of = phase(samples=samples)
    every = [(each.number, row) for each in rows_of.portions() for row in each.rows]
    ledger = UseLedger(rows_of)
    while not ledger.complete:
        left = [(each.number, row) for each in ledger.remaining() for row in each.rows]
        assert len(left) == samples - ledger.done
        some = data.draw(st.lists(st.sampled_from(left), min_size=1, unique=True))
        ledger.record(some[1:], quarantined=some[:1])
        ledger = UseLedger.from_json(ledger.to_json(), rows_of)
    assert not list(ledger.remaining())
    assert ledger.done == len(every)
    assert len(ledger.to_json()["finished"]) == 1  # a finished phase takes no room


@pytest.mark.parametrize("again", [[(0, 1)], [(0, 5), (0, 5)], [(99, 0)]])
def test_a_row_that_comes_twice_is_refused_and_nothing_is_added(again: list[tuple[int, int]]) -> None:
    rows_of = RowsOfPhase(seed=0, phase=0, samples=10, shard_rows=(10,))
    ledger = UseLedger(rows_of)
    ledger.record([(0, 1), (0, 2)])
    with pytest.raises(TrainedTwice):
        ledger.record([(0, 7), *again])
    assert ledger.done == 2


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 200))))
def test_uses_travel_as_bitmaps_that_keep_what_came_twice(uses: list[tuple[int, int]]) -> None:
    packed = UseBits.of(uses)
    found = [(number, row) for number, bits in packed.portions.items() for row in bits]
    assert sorted(found) == sorted(set(uses))
    assert set(packed.repeated) == {use for use, times in Counter(uses).items() if times > 1}
    assert all(bits.bits.bit_length() <= 201 for bits in packed.portions.values()), "a bit for a row"


def test_a_ledger_that_was_written_before_uses_were_bitmaps_is_read() -> None:
    rows_of = RowsOfPhase(seed=0, phase=0, samples=30, shard_rows=(10, 10, 10))
    numbers = [each.number for each in rows_of.portions()]
    older = {"finished": [[numbers[0], numbers[0] + 1]], "partial": {str(numbers[1]): [[1, 3], [7, 8]]}}
    ledger = UseLedger.from_json({**older, "quarantined": {str(numbers[1]): [[7, 8]]}}, rows_of)
    assert (ledger.done, ledger.quarantined) == (13, 1)
    left = {each.number: list(each.rows) for each in ledger.remaining()}
    assert left == {numbers[1]: [0, 3, 4, 5, 6, 8, 9], numbers[2]: list(range(10))}
    with pytest.raises(TrainedTwice, match=r"\(1, 2\)"):
        ledger.record([(numbers[1], 2)])


def test_order_does_not_depend_on_what_was_left_away() -> None:
    rows_of = phase(samples=22)
    whole = next(iter(rows_of.portions()))
    ledger = UseLedger(rows_of)
    ledger.record([(whole.number, row) for row in rows_of.in_order(whole)[:2]])
    rest = next(iter(ledger.remaining()))
    assert rows_of.in_order(rest) == rows_of.in_order(whole)[2:]


def test_epochs_and_phases_differ_in_order() -> None:
    rows_of = RowsOfPhase(seed=0, phase=0, samples=128, shard_rows=(64,))
    first, second = (rows_of.in_order(each) for each in rows_of.portions())
    other = RowsOfPhase(seed=0, phase=1, samples=64, shard_rows=(64,))
    assert first != second
    assert first != other.in_order(next(iter(other.portions())))


def test_rows_for_validation_are_those_of_their_numbers_over_all_shards() -> None:
    shard_rows = (3, 0, 5, 1, 0, 7)
    found = {(shard, row) for shard, rows in validation_rows(5, shard_rows, 15) for row in rows}
    every = {(shard, row) for shard, count in enumerate(shard_rows) for row in range(count)}
    assert len(found) == 15
    assert found < every


def test_rows_left_out_come_in_the_order_of_their_shards() -> None:
    one, other = (0, NumberSet.of([1])), (2, NumberSet.of([3]))
    RowsOfPhase(seed=0, phase=0, samples=4, shard_rows=(5, 5, 5), left_out=(one, other))
    for wrong in ((other, one), (one, one)):
        with pytest.raises(ValueError, match="order of their shards"):
            RowsOfPhase(seed=0, phase=0, samples=4, shard_rows=(5, 5, 5), left_out=wrong)
