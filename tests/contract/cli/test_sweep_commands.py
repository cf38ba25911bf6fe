"""`giornata sweep`: from a folder to a table of jobs."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.contract.cli.conftest import CommandResult
from tests.fixtures.served import Served, a_dataset

Run = Callable[..., CommandResult]
MODEL = ("--model", "some/model", "--instance-prompt", "a photo of sks dog")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn") / "my-dog"
    drawing = [sys.executable, "-m", "giornata.diffusion.tiny.drawings", "teal-heart", str(folder), "--count", "4"]
    subprocess.run([*drawing, "--size", "64"], check=True)
    return folder


def test_a_grid_becomes_jobs_that_a_table_shows_with_what_differs(run: Run, pictures: Path) -> None:
    axes = ("--set", "rank=8,16", "--set", "learning_rate=1e-4,5e-5", "--set", "max_train_steps=7")
    made = run("sweep", "run", str(pictures), *MODEL, *axes, "--max-cost", "2", "--json")
    assert made.status == 0, made.output
    sweep = made.json
    assert (sweep["job"]["name"], sweep["job"]["budget_micro_usd"]) == ("my-dog", 2_000_000)
    assert [each["state"] for each in sweep["jobs"]] == ["queued", "paused", "paused", "paused"]
    shown = run("sweep", "show", "my-dog")
    header, *rows = [line.split("\t") for line in shown.output.splitlines() if "\t" in line]
    assert header[:6] == ["#", "rank", "learning_rate", "job", "state", "steps"]
    assert [row[:3] for row in rows] == [
        ["1", "8", "0.0001"],
        ["2", "8", "5e-05"],
        ["3", "16", "0.0001"],
        ["4", "16", "5e-05"],
    ]
    assert {row[-2] for row in rows} == {"$0"}
    assert "the sweep's budget has no room for it" in shown.output + shown.errors
    assert run("cancel", "my-dog", "--json").json["state"] == "canceled"


def test_a_file_of_changes_becomes_jobs(run: Run, pictures: Path, tmp_path: Path) -> None:
    changes = [{"rank": 8}, {"rank": 32, "max_train_steps": 9}]
    (tmp_path / "changes.json").write_text(json.dumps(changes))
    made = run("sweep", "run", str(pictures), *MODEL, "--changes", str(tmp_path / "changes.json"), "--json")
    assert made.status == 0, made.output
    assert [each["changes"] for each in made.json["jobs"]] == changes
    assert [each["total_steps"] for each in made.json["jobs"]] == [500, 9]


def test_a_sweep_without_several_values_says_how_to_give_them(run: Run, pictures: Path) -> None:
    refused = run("sweep", "run", str(pictures), *MODEL, "--set", "rank=8", "--json")
    assert refused.status == 2
    assert [fault["where"] for fault in refused.json["error"]["faults"]] == ["--set"]


def test_a_fault_of_one_job_of_many_refuses_all(run: Run, served: Served, pictures: Path) -> None:
    refused = run("sweep", "run", str(pictures), *MODEL, "--set", "rank=8,-1", "--json")
    assert refused.status == 2
    assert [fault["where"] for fault in refused.json["error"]["faults"]] == ["grid.rank"]
    assert list(served.client(served.keys.admin).jobs()) == []


def test_jobs_of_no_sweep_are_compared_with_what_differs_in_their_specs(
    run: Run, served: Served, tmp_path: Path
) -> None:
    dataset = a_dataset(served.client(), tmp_path).id
    spec = {"model": "some/model", "dataset": dataset, "instance_prompt": "sks", "max_train_steps": 7}
    for rank in (8, 16):
        served.client().submit(spec | {"rank": rank}, name=f"fox {rank}")
    shown = run("compare", "fox 16", "fox 8")
    header, *rows = [line.split("\t") for line in shown.output.splitlines() if "\t" in line]
    assert header == ["#", "name", "job", "state", "steps", "loss", "held out", "cost", "sheet"]
    assert [[*row[:2], *row[3:]] for row in rows[:2]] == [
        ["1", "fox 16", "queued", "0/7", "–", "–", "$0", "–"],
        ["2", "fox 8", "queued", "0/7", "–", "–", "$0", "–"],
    ]
    assert rows[2] == ["differs", "1", "2"]
    assert ["rank", "16", "8"] in rows[3:]
    told = run("compare", "fox 16", "fox 8", "--json").json
    assert [each["changes"]["rank"] for each in told["jobs"]] == [16, 8]
    assert run("compare", "fox 16", "fox 16").output.count("fox 16") == 1
    assert "their specs are the same" not in run("compare", "fox 8").output


def test_a_comparison_of_what_is_no_training_job_says_which(run: Run, served: Served) -> None:
    job_id = served.client().submit({"steps": 5}, kind="x-count").id
    refused = run("compare", job_id)
    assert refused.status == 1
    assert f"there is no training job {job_id}" in refused.errors
    assert run("compare").status == 2
