"""`giornata pretrain ingest`: its options before any Ray is started, and what it says afterwards.

The program itself is in tests/system/pretrain."""

import json
import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from giornata.cli.main import app
from giornata.cli.pretraining.pretrain_ingest import MEANINGS, _changes, _configured, _progress, _say
from giornata.cli.pretraining.pretrain_process import run_program
from giornata.cli.ui.output import Output
from giornata.domain.errors import GiornataError, InvalidInput
from giornata.pretrain.data.examination import Refusal
from giornata.protocol.pretraining import Ingest
from giornata.protocol.pretraining_checks import parse_ingest

PROGRAM = "tests.fixtures.reporting_program"
REPORT = {
    "source": "/data/raw",
    "kind": "parquet",
    "files": 2,
    "bytes": 68_862,
    "out": "/data/shards",
    "rows": 1000,
    "kept": 988,
    "quarantined": {"damaged": 2, "no_caption": 10},
    "shards": 1,
    "shard_bytes": 77_907,
    "was_there": False,
}


def faults_of(*arguments: str) -> list[dict[str, str]]:
    done = CliRunner().invoke(app, ["pretrain", "ingest", "no source", "out", *arguments, "--json"])
    assert done.exit_code == 2, done.output
    return json.loads(done.stdout)["error"]["faults"]


def test_all_faulty_options_are_told_at_once() -> None:
    faults = faults_of("--set", "min_side_px=0", "--set", "ingest.max_quarantined_share=2")
    assert [fault["where"] for fault in faults] == ["ingest.min_side_px", "ingest.max_quarantined_share"]
    faults = faults_of("--set", "min_side=64", "--set", "rows_per_shard=many")
    assert {fault["where"] for fault in faults} == {"ingest.min_side", "ingest.rows_per_shard"}
    assert faults_of("--set", "dedupe_hash_distance=3")[0]["where"] == "ingest.dedupe_hash_distance"
    assert faults_of("--set", "min_side_px")[0]["message"] == "min_side_px has no value"


def test_values_are_those_of_toml_or_plain_text() -> None:
    words = ["image_column=png", "ingest.rows_per_shard=5", 'caption_columns=["a", "b"]', "max_aspect_ratio=2.5"]
    expected = Ingest(image_column="png", rows_per_shard=5, caption_columns=("a", "b"), max_aspect_ratio=2.5)
    assert parse_ingest(_changes(words)) == expected


def test_options_come_from_a_recipe_or_a_table(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('recipe = "shapes"\nname = "x"\n[ingest]\nrows_per_shard = 7\n')
    assert _configured(None) == {}
    assert parse_ingest(_configured("shapes")).rows_per_shard == 200
    assert parse_ingest(_configured(str(file))) == Ingest(min_side_px=32, rows_per_shard=7, max_quarantined_share=0.1)


@pytest.mark.parametrize(
    ("text", "where"),
    [("recipe = 'none'", "recipe"), ("ingest = 3", "ingest"), ("[ingest", "run.toml"), (None, "--config")],
)
def test_a_config_that_cannot_be_used_is_named(text: str | None, where: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "run.toml").write_text(text)
    assert faults_of("--config", str(tmp_path / "run.toml"))[0]["where"].endswith(where)


def test_every_reason_is_explained() -> None:
    assert set(MEANINGS) == set(Refusal)


def test_ingest_report_lists_reasons_of_dropped_rows_by_frequency(capsys: pytest.CaptureFixture[str]) -> None:
    _say(Output(as_json=False), REPORT)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "source      /data/raw  (parquet, 2 files, 68.9 kB)"
    assert "kept        988 of 1,000 rows" in lines
    assert [line.split()[:3] for line in lines[-2:]] == [["no_caption", "10", "1.00%"], ["damaged", "2", "0.20%"]]
    assert not any("nothing was done" in line for line in lines)


def test_a_clean_source_has_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    _say(Output(as_json=False), REPORT | {"kept": 1000, "quarantined": {}, "was_there": True})
    said = capsys.readouterr().out
    assert "quarantine  nothing" in said
    assert "nothing was done" in said
    assert "reason" not in said


def test_ingest_progress_is_printed_in_words() -> None:
    assert _progress({"what": "examined", "done": 12_000, "total": None}) == "examined 12,000 rows"
    assert _progress({"what": "written", "done": 1, "total": 12}) == "wrote 1 of 12 shards"
    assert _progress({"what": "looking", "done": 0, "total": None}) == "looking through the source"


def test_a_program_reports_and_tells_of_its_progress() -> None:
    seen: list[object] = []
    assert run_program(PROGRAM, ["--x", "well"], progress=seen.append) == {"words": ["--x", "well"]}
    assert seen == [{"done": 1}]


@pytest.mark.parametrize(
    ("order", "kind", "words"),
    [
        ("faults", InvalidInput, "source: is bad"),
        ("error", GiornataError, "the disk is full"),
        ("missing", InvalidInput, r"\.\[pretrain\]"),
        ("crash", GiornataError, "something broke"),
    ],
)
def test_program_error_or_crash_is_raised_in_caller(order: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        run_program(PROGRAM, [order], progress=lambda _told: None)


def test_a_program_ends_with_whoever_started_it_and_can_put_its_things_away(tmp_path: Path) -> None:
    def leave(_told: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_program(PROGRAM, [str(tmp_path / "note"), "wait"], progress=leave)
    assert (tmp_path / "note").read_text() == "put away"


def test_interrupted_program_runs_its_cleanup_even_when_started_in_background_of_script(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        test_a_program_ends_with_whoever_started_it_and_can_put_its_things_away(tmp_path)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("order", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGHUP)])
def test_second_signal_kills_program_that_ignores_signals_and_its_children(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    """Nor of what that has begun. The tests may have been started in the background, and be deaf to some of these."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in order}
    os.mkfifo(tmp_path / "line")
    held_open = os.open(tmp_path / "line", os.O_RDONLY | os.O_NONBLOCK)

    def leave(_told: object) -> None:
        for number in order:
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt):
        run_program(PROGRAM, [str(tmp_path / "line"), "stubborn"], progress=leave)
    for number, handler in before.items():
        signal.signal(number, handler)
    os.set_blocking(held_open, True)
    assert os.read(held_open, 1) == b"", "which comes when nobody has it open to write any more"
    os.close(held_open)
