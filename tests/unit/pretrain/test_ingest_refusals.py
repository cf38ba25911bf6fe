"""What an ingest refuses before anything is read, and how the program reports it. No Ray is started here."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.fixtures.pretrain_sources import write_example

from giornata.domain.errors import InvalidInput
from giornata.pretrain.data.fence import OWNER, claim
from giornata.pretrain.data.manifest import MANIFEST, Manifest
from giornata.pretrain.data.sources import find
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.ingest import ingest, main
from giornata.protocol.pretraining import Ingest


def run(source: Path, out: Path) -> None:
    ingest(str(source), str(out), Ingest(), progress=lambda *_: None)


@pytest.mark.parametrize(("source", "out"), [("a", "a"), ("a", "a/shards"), ("a/raw", "a")])
def test_shards_and_source_do_not_lie_in_one_another(source: str, out: str, tmp_path: Path) -> None:
    write_example(tmp_path / source, rows=2)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidInput, match="one folder"):
        run(tmp_path / source, tmp_path / out)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_manifest_that_is_none_is_not_written_over(tmp_path: Path) -> None:
    write_example(tmp_path / "raw", rows=2)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / MANIFEST).write_text("somebody's notes")
    with pytest.raises(InvalidInput, match="not a manifest"):
        run(tmp_path / "raw", tmp_path / "out")
    assert (tmp_path / "out" / MANIFEST).read_text() == "somebody's notes"


def test_shards_that_are_older_than_an_option_are_of_its_default(tmp_path: Path) -> None:
    write_example(tmp_path / "raw", rows=2)
    found = find(str(tmp_path / "raw"), Ingest())
    options = {name: each for name, each in asdict(Ingest()).items() if name != "max_captions"}
    source = {"kind": found.kind, "files": len(found.files), "bytes": found.bytes, "digest": found.digest}
    manifest = Manifest(shards=(), about={"ingest": options, "source": source})
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / MANIFEST).write_bytes(manifest.to_bytes())
    run(tmp_path / "raw", tmp_path / "out")  # nothing to do
    with pytest.raises(InvalidInput, match="max_captions = 1, not 2"):
        ingest(str(tmp_path / "raw"), str(tmp_path / "out"), Ingest(max_captions=2), progress=lambda *_: None)


def test_a_folder_that_another_command_holds_is_left_alone(tmp_path: Path) -> None:
    write_example(tmp_path / "raw", rows=2)
    claim(Storage.at(tmp_path / "out"), "ingest")
    with pytest.raises(InvalidInput, match=r"is held by giornata pretrain ingest \(process"):
        run(tmp_path / "raw", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [OWNER]


def test_the_program_reports_all_faults(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = json.dumps({"rows_per_shard": 0, "min_side_px": 0})
    assert main("source", "out", options=options, report=report) == 2
    where = [fault["where"] for fault in json.loads(report.read_text())["faults"]]
    assert where == ["ingest.min_side_px", "ingest.rows_per_shard"]
