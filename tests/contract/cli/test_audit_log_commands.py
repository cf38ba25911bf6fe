"""`giornata audit-log` against a real server, and on files without one."""

import json
import sqlite3
from contextlib import closing

import pytest

from giornata.cli.ui.output import EXIT_BAD_INPUT, EXIT_FAILED


@pytest.fixture
def exported(run, served, tmp_path):
    """An exported log of some changes."""
    for _ in range(3):
        served.client().submit({"steps": 5}, kind="x-count")
    file = tmp_path / "log.jsonl"
    run("audit-log", "export", str(file))
    return file


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def write_lines(file, lines):
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_changes_are_listed_and_narrowed(run, served):
    job = served.client().submit({"steps": 5}, kind="x-count")
    run("secrets", "set", "HUB", typed="hf_token\n")
    listed = run("audit-log", "list")
    assert "job.submit" in listed.output and job.id in listed.output and "127.0.0.1" in listed.output
    (entry,) = run("audit-log", "list", "--verb", "secret.set", "--json").json["items"]
    assert (entry["target"], entry["project_id"], entry["actor_kind"]) == ("HUB", "default", "operator")
    assert run("audit-log", "list", "--until", "2020-01-01", "--json").json == {"items": []}
    assert run("audit-log", "list", "--verb", "job.dance").status == EXIT_BAD_INPUT
    assert "there is no project nowhere" in run("audit-log", "list", "--project", "nowhere").errors


def test_exported_file_is_private_ends_with_its_head_and_verifies_without_a_server(run, exported):
    *rows, last = lines_of(exported)
    assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
    assert last["head"] == {"project_id": "default", "number": len(rows), "sha256": rows[-1]["sha256"]}
    assert exported.stat().st_mode & 0o077 == 0
    done = run("--url", "http://127.0.0.1:1", "audit-log", "verify", str(exported), "--json")
    assert done.status == 0
    assert done.json == {"sound": True, "rows": len(rows), "faults": [], "heads": [last["head"]]}


def test_first_row_that_was_changed_in_a_file_is_named(run, exported):
    lines = lines_of(exported)
    lines[2]["actor"] = "somebody else"
    lines[3]["actor"] = "somebody else"
    write_lines(exported, lines)
    done = run("audit-log", "verify", str(exported))
    assert done.status == EXIT_FAILED
    assert "the chain of default is broken at row 3: its content was changed" in done.output


def test_log_of_the_server_is_verified_against_an_earlier_export(run, served, exported, tmp_path):
    served.client().submit({"steps": 5}, kind="x-count")
    assert run("audit-log", "verify", "--against", str(exported)).status == 0
    assert run("audit-log", "verify", "--all", "--json").json["sound"]
    with closing(sqlite3.connect(tmp_path / "giornata.db")) as connection, connection:
        connection.execute("UPDATE audit_log SET address = '203.0.113.9' WHERE project_id = 'default' AND number = 2")
    broken = run("audit-log", "verify", "--json")
    assert broken.status == EXIT_FAILED
    assert [fault["row"] for fault in broken.json["faults"]] == [2]


def test_log_that_was_cut_back_behind_an_earlier_head_is_found(run, exported, tmp_path):
    *rows, last = lines_of(exported)
    shorter = tmp_path / "shorter.jsonl"
    kept = rows[:-1]
    head = {"project_id": "default", "number": len(kept), "sha256": kept[-1]["sha256"]}
    write_lines(shorter, [*kept, {"head": head}])
    assert run("audit-log", "verify", str(shorter)).status == 0
    done = run("audit-log", "verify", str(shorter), "--against", str(exported))
    assert done.status == EXIT_FAILED
    assert f"broken at row {last['head']['number']}: it is missing" in done.output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"project_id": "default", "number": 1}\n', "end without a head"),
        ("not json\n", "line 1 is no JSON object"),
        ("[1]\n", "line 1 is no JSON object"),
        ('{"head": 7}\n', "names no project, number and sha256"),
    ],
)
def test_file_that_is_no_whole_export_is_refused(run, tmp_path, text, words):
    file = tmp_path / "log.jsonl"
    file.write_text(text)
    done = run("audit-log", "verify", str(file))
    assert done.status == EXIT_BAD_INPUT
    assert words in done.errors


def test_file_that_is_not_there_is_refused_by_its_option(run, exported, tmp_path):
    nothing = str(tmp_path / "nothing.jsonl")
    assert "FILE" in run("audit-log", "verify", nothing).errors
    assert "--against" in run("audit-log", "verify", str(exported), "--against", nothing).errors
