"""`giornata delete`, `pin`, `pins` and `project retention`, as people use them."""

import json

import pytest
from tests.fixtures.served import a_dataset
from typer.testing import CliRunner

from giornata.cli.main import app
from giornata.domain.files.retention import parse_days

JOB = {"kind": "x-count", "spec": {"steps": 5}}


@pytest.fixture
def typed(served, tmp_path):
    """Run a command with the key of the project's admin."""

    def call(*words, text=None, ok=True, key=served.keys.admin):
        around = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_DATA_HOME": str(tmp_path / "home")}
        around |= {"GIORNATA_URL": served.url, "GIORNATA_API_KEY": key}
        done = CliRunner().invoke(app, list(words), input=text, env=around)
        assert (done.exit_code == 0) is ok, done.output + done.stderr
        return done

    return call


def said(done):
    return json.loads(done.stdout)


def test_job_and_dataset_are_deleted_when_nothing_holds_them(typed, served, tmp_path):
    dataset = a_dataset(served.client(), tmp_path)
    job_id = served.call("POST", "/v1/jobs", served.keys.member, json=JOB).json()["id"]
    assert "--cancel" in typed("delete", job_id, ok=False).stderr
    typed("pin", job_id)
    assert said(typed("pins", "--json"))["items"] == [{"target": job_id, "pinned": True}]
    assert "is pinned" in typed("delete", job_id, "--cancel", ok=False).stderr
    typed("unpin", job_id)
    assert said(typed("delete", job_id, "--cancel", "--json"))["finished"]
    assert "3 objects" in typed("delete", dataset.id).stdout
    assert "Nothing is pinned" in typed("pins").stderr or said(typed("pins", "--json"))["items"] == []
    assert job_id not in typed("jobs").stdout


def test_retention_is_set_class_by_class_and_previewed(typed):
    typed("project", "retention", "checkpoints=30d", "logs=4w")
    assert "30 days" in typed("project", "retention").stdout
    told = said(typed("project", "retention", "checkpoints=none", "events=7", "--json"))
    assert (told["checkpoints"], told["logs"], told["events"]) == (None, 28, 7)
    assert "28 days" in typed("project", "retention").stdout
    told = said(typed("project", "retention", "pictures=1", "--preview", "--json"))
    assert {(each["kept"], each["days"], each["count"]) for each in told["items"]} == {
        ("pictures", 1, 0),
        ("logs", 28, 0),
        ("events", 7, 0),
    }
    assert {each["kept"] for each in said(typed("project", "retention", "--preview", "--json"))["items"]} == {
        "logs",
        "events",
    }


def test_all_faults_of_times_are_told_at_once(typed):
    done = typed("project", "retention", "films=30d", "logs=soon", "events=0d", ok=False)
    for found in ("'films' is not one of", "'soon' is not a time", "'0d' is not a time"):
        assert found in done.stderr


def test_project_is_deleted_when_its_id_is_written_once_more(typed, served):
    key = served.keys.other_admin
    typed("project", "delete", "other", text="another\n", ok=False, key=key)
    assert "other is deleted" in typed("project", "delete", "other", text="other\n", key=key).stdout
    assert "unknown, revoked or expired" in typed("jobs", ok=False, key=key).stderr


@pytest.mark.parametrize(("text", "days"), [("30d", 30), ("7", 7), ("4w", 28), ("none", None), (" 1D ", 1)])
def test_time_of_days_or_weeks_is_read(text, days):
    assert parse_days(text) == days


@pytest.mark.parametrize("text", ["", "0", "-1d", "1.5d", "36501", "²", "d", "1y"])
def test_time_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="such as 30d"):
        parse_days(text)
