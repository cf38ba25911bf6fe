"""Which rows are kept: whatever the order in which they were examined, and however little memory there is."""

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq

from giornata.pretrain.data import columns
from giornata.pretrain.data.decision import QUARANTINE, Decision, Keep
from giornata.pretrain.data.examination import EXAMINED


def row(piece: int, ordinal: int, key: int, *, reason: str = "") -> dict[str, object]:
    return {
        "piece": piece,
        "ordinal": ordinal,
        columns.KEY: key.to_bytes(32, "big"),
        columns.REASON: reason,
        "detail": f"is {reason}" if reason else "",
        "source": f"file-{piece}",
        "place": str(ordinal),
        columns.CAPTION: f"caption of {key}",
    }


@contextmanager
def decided(given: list[dict[str, object]]) -> Iterator[Decision]:
    rows = pds.dataset(pa.Table.from_pylist(given, EXAMINED))
    with tempfile.TemporaryDirectory() as folder:
        yield Decision(rows, Path(folder))


def listed(given: list[dict[str, object]]) -> list[dict[str, str]]:
    with decided(given) as decision:
        return pa.Table.from_batches(decision.refused(), QUARANTINE).to_pylist()


def told(given: list[dict[str, object]]) -> dict[tuple[int, int], str]:
    """Reasons of what is refused."""
    return {
        (int(found["source"].removeprefix("file-")), int(found["place"])): found["reason"] for found in listed(given)
    }


def keys_of(keep: Keep) -> list[int]:
    return [int.from_bytes(bytes(key).ljust(32, b"\0"), "big") for key in keep.first_keys]


GIVEN = [
    row(0, 0, 50),
    row(0, 1, 7, reason="damaged"),
    row(0, 2, 30),
    row(1, 0, 50),
    row(1, 1, 60),
    row(1, 2, 7),
    row(2, 0, 50),
]


def test_duplicate_pictures_keep_the_first_in_source_order() -> None:
    expected = {(1, 0): "duplicate", (2, 0): "duplicate", (0, 1): "damaged"}
    for seed in range(5):
        assert told(random.Random(seed).sample(GIVEN, len(GIVEN))) == expected


def test_pair_of_equal_pictures_makes_one_duplicate() -> None:
    assert told([row(0, 0, 5), row(0, 1, 5), row(0, 2, 6)]) == {(0, 1): "duplicate"}


def test_a_broken_row_does_not_make_its_equal_a_duplicate() -> None:
    assert (1, 2) not in told(GIVEN)


def test_the_list_is_in_the_order_of_the_source_and_names_what_is_kept_instead() -> None:
    found = listed(random.Random(3).sample(GIVEN, len(GIVEN)))
    assert [(each["source"], each["place"], each["reason"], each["detail"]) for each in found] == [
        ("file-0", "1", "damaged", "is damaged"),
        ("file-1", "0", "duplicate", "like file-0 0"),
        ("file-2", "0", "duplicate", "like file-0 0"),
    ]
    assert found[0]["caption"] == "caption of 7"


def test_all_rows_are_counted() -> None:
    with decided(GIVEN) as decision:
        assert (decision.rows, decision.counts()) == (7, {"damaged": 1, "duplicate": 2})


def test_kept_keys_are_sorted_and_cut_into_shards() -> None:
    keys = [key * 256 for key in (1, 3, 5, 7, 9)]  # they end with a zero byte, which numpy strips
    with decided([row(0, place, key * 256) for place, key in enumerate((9, 3, 5, 1, 7))]) as decision:
        keep = decision.keep(range(1), 2)
    assert (keep.rows, keys_of(keep)) == (5, [256, 5 * 256, 9 * 256])
    assert [keep.shard_of(key.to_bytes(32, "big")) for key in keys] == [0, 0, 1, 1, 2]


def test_shards_go_on_over_what_is_read_at_once() -> None:
    many = [row(place // 1000, place % 1000, place * 7 + 1) for place in range(250_000)]
    with decided(many) as decision:
        keep = decision.keep(range(250), 1700)
    assert keys_of(keep) == [place * 7 + 1 for place in range(0, 250_000, 1700)]


def test_dropped_rows_are_found_by_piece() -> None:
    with decided(GIVEN) as decision:
        keep = decision.keep(range(3), 10)
    assert [keep.dropped_of(piece) for piece in range(4)] == [{1}, {0}, {0}, set()]


def test_a_stretch_has_its_own_rows_only() -> None:
    with decided(GIVEN) as decision:
        first, second = decision.keep(range(1), 10), decision.keep(range(1, 3), 10)
    assert (first.rows, keys_of(first), second.rows, keys_of(second)) == (2, [30], 2, [7])
    assert [first.dropped_of(piece) for piece in range(3)] == [{1}, set(), set()]
    assert [second.dropped_of(piece) for piece in range(3)] == [set(), {0}, {0}]


def test_decision_without_good_rows_keeps_nothing() -> None:
    with decided([]) as decision:
        keep = decision.keep(range(10), 10)
        assert (decision.rows, decision.counts(), keep.rows, list(keep.first_keys)) == (0, {}, 0, [])
    with decided([row(0, 0, 1, reason="empty")]) as decision:
        assert (decision.counts(), decision.keep(range(1), 10).dropped_of(0)) == ({"empty": 1}, {0})


def test_the_list_names_what_is_kept_in_another_file(tmp_path: Path) -> None:
    files = [
        [row(0, 0, 1), row(0, 1, 2)],
        [row(1, 0, 2), row(1, 1, 3), row(1, 2, 4, reason="damaged")],
        [],
        [row(3, 0, 3)],
    ]
    for number, each in enumerate(files):
        pq.write_table(pa.Table.from_pylist(each, EXAMINED), tmp_path / f"part-{number}.parquet")
    examined = pds.dataset(sorted(tmp_path.glob("*.parquet")), schema=EXAMINED, format="parquet")
    decision = Decision(examined, tmp_path)
    for _ in range(2):
        found = pa.Table.from_batches(decision.refused(), QUARANTINE).to_pylist()
        assert [(each["source"], each["place"], each["detail"]) for each in found] == [
            ("file-1", "0", "like file-0 1"),
            ("file-1", "2", "is damaged"),
            ("file-3", "0", "like file-1 1"),
        ]


def many_rows(keys: np.ndarray) -> pds.Dataset:
    """Sound rows of one piece, without captions."""
    count = len(keys)
    binary = pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), count, [None, pa.py_buffer(keys.tobytes())])
    empty = pa.array([""] * count)
    table = pa.table(
        {
            "piece": np.zeros(count, np.int32),
            "ordinal": np.arange(count),
            columns.KEY: binary,
            **dict.fromkeys((columns.REASON, "detail", "source", "place", columns.CAPTION), empty),
        }
    )
    return pds.dataset(table.select(EXAMINED.names).cast(EXAMINED))


def test_decision_beyond_memory_limit_spills_to_disk(tmp_path: Path) -> None:
    count = 600_000
    keys = np.random.default_rng(0).integers(0, 256, (count, 32), dtype=np.uint8)
    keys[-1] = keys[0]
    rows = many_rows(keys)
    decision = Decision(rows, tmp_path, memory_bytes=48 << 20)
    assert decision.counts() == {"duplicate": 1}
    assert [batch.num_rows for batch in decision.refused()] == [1]
    keep = decision.keep(range(1), 1000)
    assert keep.rows == count - 1
    expected = sorted(bytes(each) for each in keys[:-1])[::1000]
    assert [bytes(key).ljust(32, b"\0") for key in keep.first_keys] == expected
