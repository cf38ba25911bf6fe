"""How the pieces of a source are put together."""

import random

import pytest

from giornata.pretrain.data.sources import Kind, Piece
from giornata.pretrain.data.stretches import MOST_PARTS, parts_of, pieces_of, stretches_of, table_of


def pieces(*sizes: int) -> list[Piece]:
    return [Piece(kind=Kind.WEBDATASET, names=(f"{place}.tar",), bytes=size) for place, size in enumerate(sizes)]


def test_a_stretch_ends_before_the_piece_that_would_be_too_much() -> None:
    assert stretches_of(pieces(4, 4, 4, 9, 1, 1), 8) == [range(2), range(2, 3), range(3, 4), range(4, 6)]
    assert stretches_of(pieces(4, 4, 4), 12) == [range(3)]


def test_a_piece_larger_than_a_stretch_is_one() -> None:
    assert stretches_of(pieces(100, 100), 8) == [range(1), range(1, 2)]


@pytest.mark.parametrize("seed", range(20))
def test_stretches_are_all_pieces_in_order_and_within_the_limit(seed: int) -> None:
    draw = random.Random(seed)
    given = pieces(*(draw.randrange(50) for _ in range(draw.randrange(1, 60))))
    found = stretches_of(given, 100)
    assert [number for stretch in found for number in stretch] == list(range(len(given)))
    assert all(sum(given[number].bytes for number in stretch) <= 100 for stretch in found)


@pytest.mark.parametrize("count", [1, 7, MOST_PARTS, MOST_PARTS + 1, 3 * MOST_PARTS - 1])
def test_parts_are_all_pieces_in_order_and_even(count: int) -> None:
    found = parts_of(pieces(*[1] * count))
    assert len(found) == min(count, MOST_PARTS)
    assert [number for part in found for number in part] == list(range(count))
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_of_no_pieces_there_are_no_parts() -> None:
    assert parts_of([]) == []


def test_pieces_travel_as_they_are() -> None:
    given = [
        Piece(kind=Kind.PARQUET, names=("a.parquet",), row_group=3, first=70, bytes=9),
        Piece(kind=Kind.PICTURES, names=("a.png", "b.png")),
    ]
    assert list(pieces_of(table_of(given, [1, 0]))) == [(1, given[1]), (0, given[0])]
