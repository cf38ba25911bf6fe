"""How the pieces of a source are put together."""

import random

import pytest

from giornata.pretrain.data.ingest_tasks import packed_part, unpacked_pieces
from giornata.pretrain.data.sources import MAX_PARTS, Kind, Piece, parts_of, stretches_of


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


@pytest.mark.parametrize("count", [1, 7, MAX_PARTS, MAX_PARTS + 1, 3 * MAX_PARTS - 1])
def test_parts_are_all_pieces_in_order_and_even(count: int) -> None:
    found = parts_of(count)
    assert len(found) == min(count, MAX_PARTS)
    assert [number for part in found for number in part] == list(range(count))
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_parts_of_zero_pieces_are_empty() -> None:
    assert parts_of(0) == []


def test_pieces_travel_as_they_are() -> None:
    given = [
        Piece(kind=Kind.PARQUET, names=("a.parquet",), row_group=3, first=70, bytes=9),
        Piece(kind=Kind.PICTURES, names=("a.png", "b.png")),
    ]
    assert unpacked_pieces(packed_part(7, [1, 0], given)) == [(1, given[1]), (0, given[0])]
