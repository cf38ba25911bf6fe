"""Ingest on a real Ray. What each row comes to is in tests/unit/pretrain; here are the whole and its ends."""

import hashlib
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest
from examples.pretrain_demo.example_data import WrittenRows
from tests.fixtures.pretrain_sources import write_example

from giornata.diffusion.encode.decoding import decode
from giornata.domain.errors import InvalidInput
from giornata.pretrain.data import columns
from giornata.pretrain.data.fence import OWNER
from giornata.pretrain.data.manifest import MANIFEST, Manifest
from giornata.pretrain.data.sources import Kind
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.ingest import ingest
from giornata.protocol.pretraining import Ingest

pytestmark = pytest.mark.usefixtures("ray")
OPTIONS = Ingest(rows_per_shard=16, max_quarantined_share=0.4)


def ingested(source: Path, out: Path, options: Ingest = OPTIONS) -> tuple[dict[str, Any], Manifest]:
    report = ingest(str(source), str(out), options, progress=lambda *_: None)
    return report, Manifest.from_bytes((out / MANIFEST).read_bytes(), where=str(out))


def shard_rows(out: Path, manifest: Manifest) -> list[dict[str, Any]]:
    return [row for shard in manifest.shards for row in pq.read_table(out / shard.name).to_pylist()]


def quarantined(out: Path) -> list[dict[str, Any]]:
    names = Storage.at(out).names("quarantine")
    return [row for name in names for row in pq.read_table(io.BytesIO((out / name).read_bytes())).to_pylist()]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> WrittenRows:
    return write_example(tmp_path_factory.mktemp("example"), rows=50)


@pytest.fixture(scope="module")
def done(
    ray: ModuleType, example: WrittenRows, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("out") / "shards"
    report, _ = ingested(example.folder, out)
    return out, report


def test_ingest_keeps_each_good_row_once_with_image_and_caption_unchanged(
    example: WrittenRows, done: tuple[Path, dict[str, Any]]
) -> None:
    out, report = done
    manifest = Manifest.from_bytes((out / MANIFEST).read_bytes(), where="")
    rows = shard_rows(out, manifest)
    assert [row[columns.KEY] for row in rows] == sorted(example.kept)
    for row in rows:
        expected = example.kept[row[columns.KEY]]
        assert row[columns.IMAGE] == expected.image
        assert row[columns.CAPTION] == expected.caption
        assert (row[columns.WIDTH], row[columns.HEIGHT]) == decode(row[columns.IMAGE]).size
    assert report["kept"] == manifest.rows == len(example.kept)
    assert report["rows"] == len(example.rows)


def test_the_quarantine_is_exactly_what_is_bad(example: WrittenRows, done: tuple[Path, dict[str, Any]]) -> None:
    out, report = done
    expected = [(row.source, row.place, str(row.refusal)) for row in example.rows if row.refusal]
    found = quarantined(out)
    assert [(row["source"], row["place"], row["reason"]) for row in found] == expected
    assert report["quarantined"] == example.refused
    assert all(row["detail"] for row in found)
    duplicate = next(row for row in found if row["reason"] == "duplicate")
    assert duplicate["detail"] == "like part-00000.parquet 0"


def test_shards_are_full_but_for_the_last_and_are_what_the_manifest_says(done: tuple[Path, dict[str, Any]]) -> None:
    out, _ = done
    manifest = Manifest.from_bytes((out / MANIFEST).read_bytes(), where="")
    assert [shard.rows for shard in manifest.shards[:-1]] == [16] * (len(manifest.shards) - 1)
    assert 0 < manifest.shards[-1].rows <= 16
    for shard in manifest.shards:
        content = (out / shard.name).read_bytes()
        assert (shard.bytes, shard.sha256) == (len(content), hashlib.sha256(content).hexdigest())
        assert pq.read_schema(io.BytesIO(content)) == columns.SOURCE


def test_the_same_again_is_nothing_to_do_and_anything_else_is_refused(
    example: WrittenRows, done: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    out, report = done
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert ingested(example.folder, out)[0] == {**report, "was_there": True}
    other = Ingest(rows_per_shard=8, min_side_px=32, max_quarantined_share=0.4)
    with pytest.raises(InvalidInput) as refused:
        ingested(example.folder, out, other)
    assert {fault.message.partition(" with ")[2] for fault in refused.value.faults} == {
        "rows_per_shard = 16, not 8",
        "min_side_px = 64, not 32",
    }
    write_example(tmp_path, rows=3)
    with pytest.raises(InvalidInput, match="another source"):
        ingested(tmp_path, out)
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


def test_an_interrupted_ingest_may_begin_again_and_gives_the_same(
    example: WrittenRows, done: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    def stop(what: str, number: int, _total: int | None) -> None:
        if (what, number) == ("written", 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(str(example.folder), str(tmp_path / "out"), OPTIONS, progress=stop)
    assert not (tmp_path / "out" / MANIFEST).exists()
    (tmp_path / "out" / "shard-00099.parquet").write_bytes(b"of a longer one")
    ingested(example.folder, tmp_path / "out")
    files = [
        {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.*") if path.name != OWNER}
        for out in (tmp_path / "out", done[0])
    ]
    assert files[0] == files[1]


def test_shards_do_not_depend_on_how_the_source_was_cut(done: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    write_example(tmp_path / "tars", rows=50, kind=Kind.WEBDATASET, files=5)
    report, _ = ingested(tmp_path / "tars", tmp_path / "out")
    assert report["manifest_digest"] == done[1]["manifest_digest"]


SMALL = Ingest(rows_per_shard=4, max_quarantined_share=0.4, shuffle_bytes=1)
"""Every file of the example, or row group of one, is a stretch."""


def test_a_large_source_is_written_in_stretches_and_goes_on_where_it_was(
    example: WrittenRows, tmp_path: Path
) -> None:
    def stop(what: str, number: int, _total: int | None) -> None:
        if (what, number) == ("written", 6):
            raise KeyboardInterrupt

    report, manifest = ingested(example.folder, tmp_path / "whole", SMALL)
    rows = [[row[columns.KEY] for row in shard_rows(tmp_path / "whole", replace(manifest, shards=(shard,)))]
            for shard in manifest.shards]  # fmt: skip
    assert sorted(key for keys in rows for key in keys) == sorted(example.kept)
    assert all(keys == sorted(keys) for keys in rows)
    assert sum(len(keys) < 4 for keys in rows) > 1  # the last of several stretches
    assert [shard.name for shard in manifest.shards] == [f"shard-{place:05}.parquet" for place in range(len(rows))]

    with pytest.raises(KeyboardInterrupt):
        ingest(str(example.folder), str(tmp_path / "out"), SMALL, progress=stop)
    (tmp_path / "out" / "shard-00099.parquet").write_bytes(b"of a longer one")
    assert list((tmp_path / "out" / "unfinished").rglob("stretch-*.json"))
    kept = {path.name: path.stat().st_ino for path in (tmp_path / "out").glob("shard-0000[0-3].parquet")}
    assert ingested(example.folder, tmp_path / "out", SMALL)[0]["manifest_digest"] == report["manifest_digest"]
    assert kept.items() <= {path.name: path.stat().st_ino for path in (tmp_path / "out").glob("shard-*")}.items()
    trees = [
        {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.*") if path.name != OWNER}
        for out in (tmp_path / "out", tmp_path / "whole")
    ]
    assert trees[0] == trees[1]


def test_too_many_bad_rows_are_all_counted_and_then_refused(example: WrittenRows, tmp_path: Path) -> None:
    few = Ingest(rows_per_shard=16, max_quarantined_share=0.1)
    with pytest.raises(InvalidInput, match="max_quarantined_share") as refused:
        ingested(example.folder, tmp_path / "out", few)
    assert f"{sum(example.refused.values())} of {len(example.rows)} rows" in str(refused.value)
    assert len(quarantined(tmp_path / "out")) == sum(example.refused.values())
    left = [name for name in Storage.at(tmp_path / "out").names() if not name.startswith("unfinished/")]
    assert left == [OWNER, "quarantine/part-00000.parquet"]


def test_after_a_refusal_nothing_is_examined_again(
    example: WrittenRows, done: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    few = Ingest(rows_per_shard=16, max_quarantined_share=0.1)
    with pytest.raises(InvalidInput):
        ingested(example.folder, tmp_path / "out", few)
    (folder,) = (tmp_path / "out" / "unfinished").iterdir()
    before = {path.name: path.stat().st_ino for path in folder.iterdir()}

    def look(what: str, number: int, _total: int | None) -> None:
        if (what, number) == ("written", 1):
            seen.update({path.name: path.stat().st_ino for path in folder.iterdir()})

    seen: dict[str, int] = {}
    report = ingest(str(example.folder), str(tmp_path / "out"), OPTIONS, progress=look)
    assert before
    assert seen == before
    assert report["manifest_digest"] == done[1]["manifest_digest"]
    assert not (tmp_path / "out" / "unfinished").exists()


def cut_parquet(folder: Path) -> None:
    """Its second row group is overwritten: the footer can still be read."""
    path = folder / "part-00001.parquet"
    group = pq.ParquetFile(path).metadata.row_group(1).column(2)
    content = bytearray(path.read_bytes())
    start = group.data_page_offset
    content[start : start + 200] = bytes(200)
    path.write_bytes(content)


def cut_tar(folder: Path) -> None:
    path = folder / "00001.tar"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(("kind", "cut"), [(Kind.PARQUET, cut_parquet), (Kind.WEBDATASET, cut_tar)])
def test_a_source_file_that_breaks_off_costs_its_rest_only(
    kind: Kind, cut: Callable[[Path], None], tmp_path: Path
) -> None:
    whole = write_example(tmp_path / "source", rows=40, oddities=0, kind=kind)
    cut(tmp_path / "source")
    report, manifest = ingested(tmp_path / "source", tmp_path / "out", Ingest(rows_per_shard=10, min_side_px=16))
    assert report["quarantined"] == {"source_damaged": 1}
    assert quarantined(tmp_path / "out")[0]["source"] in {"part-00001.parquet", "00001.tar"}
    kept = {row[columns.KEY] for row in shard_rows(tmp_path / "out", manifest)}
    assert kept < set(whole.kept)
    assert {key for key, row in whole.kept.items() if row.source.endswith(("00000.parquet", "00000.tar"))} < kept


def test_several_captions_of_a_picture_lie_in_its_shard(tmp_path: Path) -> None:
    example = write_example(tmp_path / "source", rows=12, oddities=0)
    options = Ingest(rows_per_shard=10, caption_columns=("caption", "url"), max_captions=2)
    _, manifest = ingested(tmp_path / "source", tmp_path / "out", options)
    rows = shard_rows(tmp_path / "out", manifest)
    assert [row[columns.KEY] for row in rows] == sorted(example.kept)
    assert [row[columns.CAPTION] for row in rows] == [example.kept[row[columns.KEY]].caption for row in rows]
    assert all(len(row[columns.CAPTIONS]) == 2 and row[columns.CAPTIONS][0] == row[columns.CAPTION] for row in rows)
