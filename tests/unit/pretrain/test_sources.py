"""What is found in a source, and how strange files are taken. That every form reads well is in test_example_data."""

import io
import json
import tarfile
from importlib.util import find_spec
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fixtures.pretrain_sources import write_example

from giornata.domain.errors import InvalidInput
from giornata.pretrain.data.source_rows import Raw, SourceDamaged, rows_of
from giornata.pretrain.data.sources import Kind, Source, find
from giornata.pretrain.data.storage import Storage
from giornata.protocol.pretraining import Ingest


def read(source: Source, options: Ingest) -> list[Raw]:
    return [raw for piece in source.pieces for raw in rows_of(source.storage, piece, options)]


def captions(folder: Path, options: Ingest) -> list[str]:
    return [raw.caption for raw in read(find(str(folder), options), options)]


def test_source_of_one_parquet_file_is_read(tmp_path: Path) -> None:
    whole = write_example(tmp_path, rows=6, oddities=0, files=2)
    source = find(str(tmp_path / "part-00001.parquet"), Ingest())
    assert [raw.image for raw in read(source, Ingest())] == [row.image for row in whole.rows[3:]]


def test_the_digest_follows_names_and_sizes_and_not_the_folder(tmp_path: Path) -> None:
    digests = []
    for name, rows in (("a", 3), ("b", 3), ("c", 4)):
        write_example(tmp_path / name, rows=rows, oddities=0)
        digests.append(find(str(tmp_path / name), Ingest()).digest)
    assert digests[0] == digests[1] != digests[2]


def test_sources_of_no_kind_of_several_kinds_or_without_a_column_are_refused(tmp_path: Path) -> None:
    for folder in ("empty", "text"):
        (tmp_path / folder).mkdir()
    (tmp_path / "text" / "readme.txt").write_text("x")
    for name, words in (("none", "nothing in"), ("empty", "nothing in"), ("text", "nothing to read")):
        with pytest.raises(InvalidInput, match=words):
            find(str(tmp_path / name), Ingest())
    write_example(tmp_path / "mixed", rows=2)
    write_example(tmp_path / "mixed", rows=2, kind=Kind.WEBDATASET)
    with pytest.raises(InvalidInput, match="2 of parquet, 2 of webdataset"):
        find(str(tmp_path / "mixed"), Ingest())
    write_example(tmp_path / "sound", rows=2)
    with pytest.raises(InvalidInput) as refused:
        find(str(tmp_path / "sound"), Ingest(image_column="image", caption_columns=("text", "alt")))
    assert [fault.where for fault in refused.value.faults] == ["ingest.image_column", "ingest.caption_columns"]
    assert "has url, caption, jpg" in str(refused.value)


def test_captions_come_from_the_first_column_that_has_one(tmp_path: Path) -> None:
    table = pa.table({"alt": ["a", "b", "c"], "caption": ["A", None, " "], "jpg": [b"1", b"2", b"3"]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert captions(tmp_path, Ingest(caption_columns=("caption", "alt"))) == ["A", "b", "c"]
    assert captions(tmp_path, Ingest(caption_columns=("alt", "caption"))) == ["a", "b", "c"]


def test_captions_come_from_all_columns_and_from_lists_where_several_are_kept(tmp_path: Path) -> None:
    several = pa.array([["A1", None, "A2"], None, []], pa.list_(pa.string()))
    table = pa.table({"captions": several, "alt": ["a", "b", None], "jpg": [b"1", b"2", b"3"]})
    pq.write_table(table, tmp_path / "a.parquet")
    options = Ingest(caption_columns=("captions", "alt"), max_captions=9)
    found = read(find(str(tmp_path), options), options)
    assert [raw.captions for raw in found] == [("A1", "A2", "a"), ("b",), ()]
    assert captions(tmp_path, options) == ["A1", "b", ""]


def test_text_that_is_no_utf8_hurts_its_own_row_only(tmp_path: Path) -> None:
    broken = pa.array([b"good", b"\xff\xfe", b"also"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"caption": broken, "jpg": [b"1", b"2", b"3"]}), tmp_path / "a.parquet")
    assert captions(tmp_path, Ingest()) == ["good", "", "also"]


def test_a_column_of_numbers_is_no_caption(tmp_path: Path) -> None:
    pq.write_table(pa.table({"caption": [1.5, float("nan")], "jpg": [b"1", b"2"]}), tmp_path / "a.parquet")
    assert captions(tmp_path, Ingest()) == ["", ""]


def test_hugging_face_data_set_reads_only_its_own_arrow_files(tmp_path: Path) -> None:
    whole = write_example(tmp_path, rows=4, oddities=0, kind=Kind.HUGGINGFACE)
    (tmp_path / "cache-0123.arrow").write_bytes((tmp_path / "data-00000-of-00002.arrow").read_bytes())
    assert len(read(find(str(tmp_path), Ingest()), Ingest())) == len(whole.rows)
    (tmp_path / "state.json").unlink()
    assert len(read(find(str(tmp_path), Ingest()), Ingest())) == len(whole.rows)


def test_members_of_a_tar_make_samples_and_others_are_passed_over(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        for name, content in (
            ("x/001.jpg", b"one"),
            ("x/001.json", json.dumps({"alt": "said"}).encode()),
            ("x/001.mp4", b"film"),
            ("x/._002.png", b"junk of an archiver"),
            ("x/002.seg.png", b"no picture of the sample"),
            ("x/002.txt", b"two"),
            ("y/002.PNG", b"other folder"),
            ("y/002.json", b"{not json"),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    found = read(find(str(tmp_path), options := Ingest(caption_columns=("alt",))), options)
    assert [(raw.place, raw.image, raw.caption) for raw in found] == [
        ("x/001", b"one", "said"),
        ("x/002", None, "two"),
        ("y/002", b"other folder", ""),
    ]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Kind.PARQUET, "part-00000.parquet"),
        (Kind.WEBDATASET, "00000.tar"),
        (Kind.HUGGINGFACE, "data-00000-of-00001.arrow"),
        (Kind.MDS, "shard.00000.mds"),
    ],
)
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.6])
def test_a_file_that_was_cut_ends_as_damaged(kind: Kind, name: str, kept: float, tmp_path: Path) -> None:
    whole = write_example(tmp_path, rows=60, oddities=0, kind=kind, files=1)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(len(content) * kept)])
    source, found = find(str(tmp_path), Ingest()), []
    with pytest.raises(SourceDamaged):
        found.extend(raw for piece in source.pieces for raw in rows_of(source.storage, piece, Ingest()))
    assert len(found) < len(whole.rows)


@pytest.mark.parametrize("kind", list(Kind))
def test_pieces_are_together_as_large_as_their_files(kind: Kind, tmp_path: Path) -> None:
    write_example(tmp_path, rows=60, kind=kind, files=3)
    source = find(str(tmp_path), Ingest())
    assert all(piece.bytes > 0 for piece in source.pieces)
    assert source.bytes - len(source.pieces) <= sum(piece.bytes for piece in source.pieces) <= source.bytes


@pytest.mark.parametrize("kind", list(Kind))
def test_a_source_may_lie_where_fsspec_reads(kind: Kind, tmp_path: Path) -> None:
    example = write_example(tmp_path, rows=12, kind=kind)
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path), f"/{tmp_path.name}", recursive=True)
    for address in (f"memory://{tmp_path.name}", f"file://{tmp_path}"):
        source = find(address, Ingest())
        assert source.digest == find(str(tmp_path), Ingest()).digest
        assert [raw.image or b"" for raw in read(source, Ingest())] == [row.image or b"" for row in example.rows]
    memory.rm(f"/{tmp_path.name}", recursive=True)


def test_source_of_one_file_is_read_through_fsspec(tmp_path: Path) -> None:
    whole = write_example(tmp_path, rows=6, oddities=0)
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path), "/one", recursive=True)
    source = find("memory://one/part-00001.parquet", Ingest())
    assert [raw.image for raw in read(source, Ingest())] == [row.image for row in whole.rows[3:]]
    memory.rm("/one", recursive=True)


@pytest.mark.skipif(find_spec("gcsfs") is not None, reason="gcsfs is installed here")
def test_an_address_whose_package_is_missing_names_the_extra() -> None:
    with pytest.raises(InvalidInput, match=r"gs:// needs a package that is not installed.*\.\[gcs\]"):
        find("gs://bucket/pictures", Ingest())


def test_addresses_of_unknown_kinds_are_refused_and_nothing_is_written_to_a_bucket_of_google() -> None:
    with pytest.raises(InvalidInput, match="nothing:// is not known"):
        find("nothing://bucket/pictures", Ingest())
    with pytest.raises(InvalidInput, match="cannot write to gs://"):
        Storage.at("gs://bucket/shards")


def test_compressed_mds_is_read_and_needs_its_index(tmp_path: Path) -> None:
    example = write_example(tmp_path, rows=6, oddities=0, kind=Kind.MDS, files=1)
    raw = tmp_path / "shard.00000.mds"
    (tmp_path / "shard.00000.mds.zstd").write_bytes(pa.compress(raw.read_bytes(), "zstd", asbytes=True))
    values = json.loads((tmp_path / "index.json").read_text())
    values["shards"][0] |= {"compression": "zstd:7", "zip_data": {"basename": "shard.00000.mds.zstd"}}
    (tmp_path / "index.json").write_text(json.dumps(values))
    options = Ingest(image_column="pixels")
    pixels = [
        each | {"column_names": ["caption", "pixels"], "column_encodings": ["str", "pil"]}
        for each in values["shards"]
    ]
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": pixels}))
    with pytest.raises(InvalidInput, match=r"pixels \(as pil, which is not read\)"):
        find(str(tmp_path), options)
    (tmp_path / "index.json").write_text(json.dumps(values))
    for _ in range(2):  # both files are there, then only the compressed one
        found = read(find(str(tmp_path), Ingest()), Ingest())
        assert [(each.image, each.caption) for each in found] == [(row.image, row.caption) for row in example.rows]
        raw.unlink(missing_ok=True)
    (tmp_path / "index.json").unlink()
    with pytest.raises(InvalidInput, match=r"index\.json cannot be read"):
        find(str(tmp_path), Ingest())
