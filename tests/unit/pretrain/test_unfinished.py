"""What an interrupted ingest leaves, and which of it may be used."""

from pathlib import Path
from typing import Any

import pytest

from giornata.pretrain.data.manifest import Shard
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.ingest import Unfinished

OPTIONS = {"min_side_px": 64, "rows_per_shard": 10, "max_quarantined_share": 0.05, "dedupe_hash_distance": None}


def about(source: str = "one", **changes: Any) -> dict[str, Any]:
    return {"source": {"digest": source}, "ingest": {**OPTIONS, **changes}}


@pytest.fixture(params=["", "below/it"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return Storage.at(tmp_path) / request.param


def shard(out: Storage, number: int) -> Shard:
    name = f"shard-{number:05}.parquet"
    out.write(name, b"rows")
    return Shard(name=name, rows=1, bytes=4, sha256="")


def begun(out: Storage) -> Unfinished:
    """Two stretches are written, and something of a third."""
    found = Unfinished.of(out, about())
    found.examined.write("part-00000.parquet", b"examined")
    found.note(0, [shard(out, 0), shard(out, 1)])
    found.note(1, [])
    shard(out, 2)
    out.write("quarantine/part-00000.parquet", b"rows")
    return found


def test_the_same_ingest_finds_what_is_whole(out: Storage) -> None:
    shards = begun(out).shards_of(0)
    again = Unfinished.of(out, about())
    again.clear()
    assert again.shards_of(0) == shards
    assert (again.shards_of(1), again.shards_of(2)) == ([], None)
    assert again.examined.names() == ["part-00000.parquet"]


def test_shards_that_no_note_names_are_removed(out: Storage) -> None:
    begun(out).clear()
    assert [name for name in out.names() if name.startswith("shard")] == [
        "shard-00000.parquet",
        "shard-00001.parquet",
    ]
    assert out.names("quarantine") == []


@pytest.mark.parametrize("change", [{"source": "two"}, {"min_side_px": 32}])
def test_interrupted_ingest_of_other_source_or_filters_is_cleared(out: Storage, change: dict[str, Any]) -> None:
    begun(out)
    other = Unfinished.of(out, about(**change))
    other.clear()
    assert out.names() == []
    assert other.shards_of(0) is None


@pytest.mark.parametrize(
    "change", [{"rows_per_shard": 5}, {"max_quarantined_share": 0.5}, {"shuffle_bytes": 7}, {"max_captions": 2}]
)
def test_examined_rows_of_interrupted_ingest_are_reused_with_other_shard_options(
    out: Storage, change: dict[str, Any]
) -> None:
    begun(out)
    other = Unfinished.of(out, about(**change))
    other.clear()
    assert other.examined.names() == ["part-00000.parquet"]
    assert other.shards_of(0) is None
    assert not [name for name in out.names() if name.startswith("shard")]


@pytest.mark.parametrize("content", [None, b"short"])
def test_a_note_whose_shard_is_not_as_it_says_does_not_count(out: Storage, content: bytes | None) -> None:
    begun(out)
    out.remove("shard-00001.parquet")
    if content is not None:
        out.write("shard-00001.parquet", content)
    assert Unfinished.of(out, about()).shards_of(0) is None


def test_at_the_end_nothing_of_it_is_left(out: Storage) -> None:
    begun(out).remove()
    assert not out.names("unfinished")
    assert out.exists("shard-00000.parquet")


def test_results_of_older_examination_version_are_not_used(out: Storage) -> None:
    before, after = Unfinished.of(out, about(), examination=1), Unfinished.of(out, about())
    assert before.examined != after.examined
    assert before.written != after.written
