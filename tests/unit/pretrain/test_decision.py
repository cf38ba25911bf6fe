"""Which rows are kept: whatever the order in which they were examined."""

import random

import pyarrow as pa

from giornata.pretrain import columns
from giornata.pretrain.decision import Decision, Rows, decide, reason_name
from giornata.pretrain.examination import EXAMINED
from giornata.pretrain.ingest_tasks import Keep


def row(
    piece: int, ordinal: int, key: int, *, reason: str = "", pixels: int = 1, hashed: int = 0
) -> dict[str, object]:
    return {
        "piece": piece,
        "ordinal": ordinal,
        columns.KEY: key.to_bytes(32, "big"),
        "pixels": pixels,
        "hash": hashed,
        columns.REASON: reason,
        "detail": "",
        "source": f"file-{piece}",
        "place": str(ordinal),
        columns.CAPTION: "",
    }


def decided(given: list[dict[str, object]], distance: int | None = None) -> tuple[Rows, Decision]:
    rows = Rows()
    for start in range(0, len(given), 3):
        rows.add(pa.Table.from_pylist(given[start : start + 3], EXAMINED))
    return rows, decide(rows, hash_distance=distance)


def told(given: list[dict[str, object]], distance: int | None = None) -> dict[tuple[int, int], str]:
    rows, decision = decided(given, distance)
    places = zip(rows.column("piece").tolist(), rows.column("ordinal").tolist(), strict=True)
    return dict(zip(places, map(reason_name, decision.reasons), strict=True))


GIVEN = [
    row(0, 0, 50, hashed=0b0000_1111),
    row(0, 1, 7, reason="damaged"),
    row(0, 2, 30, hashed=2**40 - 1),
    row(1, 0, 50, hashed=0b0000_1111),
    row(1, 1, 60, hashed=0b0001_1111, pixels=9),
    row(1, 2, 7, hashed=2**63),
    row(2, 0, 50, hashed=0b0000_1111),
]


def test_of_equal_pictures_the_first_in_the_source_stays() -> None:
    expected = {(1, 0): "duplicate", (2, 0): "duplicate", (0, 1): "damaged"}
    for seed in range(10):
        shuffled = random.Random(seed).sample(GIVEN, len(GIVEN))
        assert {place: reason for place, reason in told(shuffled).items() if reason} == expected


def test_a_broken_row_does_not_make_its_equal_a_duplicate() -> None:
    assert told(GIVEN)[1, 2] == ""


def test_of_pictures_that_look_alike_the_largest_stays() -> None:
    for seed in range(10):
        shuffled = random.Random(seed).sample(GIVEN, len(GIVEN))
        near = [place for place, reason in told(shuffled, 1).items() if reason == "near_duplicate"]
        assert near == [(0, 0)]
    assert "near_duplicate" not in told(GIVEN, 0).values()


def test_a_duplicate_names_what_is_kept_instead() -> None:
    rows, decision = decided(GIVEN, 1)
    pairs = {
        int(rows.column("key")[place][-1]): int(rows.column("key")[kept][-1]) for place, kept in decision.like.items()
    }
    assert pairs == {50: 60} | {50: 60}
    assert decision.counts() == {"damaged": 1, "duplicate": 2, "near_duplicate": 1}


def test_kept_keys_are_sorted_and_cut_into_shards() -> None:
    rows, decision = decided([row(0, place, key * 256) for place, key in enumerate((9, 3, 5, 1, 7))])
    keep = Keep.of(rows, decision, 2)
    keys = [key * 256 for key in (1, 3, 5, 7, 9)]  # they end with a zero byte, which numpy strips
    assert [keep.shard_of(key.to_bytes(32, "big")) for key in keys] == [0, 0, 1, 1, 2]


def test_dropped_rows_are_found_by_piece() -> None:
    rows, decision = decided(GIVEN)
    keep = Keep.of(rows, decision, 10)
    assert [keep.dropped_of(piece) for piece in range(4)] == [{1}, {0}, {0}, set()]


def test_of_nothing_nothing_is_kept() -> None:
    rows, decision = decided([])
    assert (len(rows), decision.counts(), list(decision.first_keys(10))) == (0, {}, [])
    assert decided([row(0, 0, 1, reason="empty")])[1].counts() == {"empty": 1}
