"""Where the demo puts things, and what it leaves alone."""

import json
import subprocess
import sys

import pytest

from giornata.cli.demo_installation import own_environment
from giornata.cli.demo_plan import MARK, OWN, SUBJECTS, Plan, prepare
from giornata.domain.errors import InvalidInput
from giornata.protocol.specs import TrainSpec


@pytest.fixture
def plan(tmp_path):
    return Plan(out=tmp_path / "demo", jobs=3, steps=300)


def test_every_spec_is_valid_and_takes_several_checkpoints(plan):
    for subject in SUBJECTS:
        spec = TrainSpec.model_validate(plan.spec(subject, "ds_1", "ds_2"))
        assert spec.checkpointing_steps == 37
        assert spec.instance_prompt == SUBJECTS[subject]
    assert len({plan.spec(subject, "ds_1", "ds_2")["seed"] for subject in SUBJECTS}) == len(SUBJECTS)
    assert plan.spec("teal-heart", "ds_1", "ds_2") == plan.spec("teal-heart", "ds_1", "ds_2")


def test_what_an_earlier_demo_left_is_removed_and_nothing_else(plan):
    prepare(plan)
    for name in OWN:
        if "." in name:
            (plan.out / name).write_text("old")
        else:
            (plan.out / name).mkdir(exist_ok=True)
            (plan.out / name / "old").write_text("old")
    (plan.out / "notes.txt").write_text("mine")
    prepare(plan)
    assert sorted(path.name for path in plan.out.iterdir()) == [MARK, "data", "logs", "notes.txt"]
    assert not any(plan.data.iterdir())


def test_a_directory_with_other_files_is_left_alone(plan):
    plan.out.mkdir()
    (plan.out / "thesis.tex").write_text("years of work")
    with pytest.raises(InvalidInput, match="files that are not a demo's"):
        prepare(plan)
    assert [path.name for path in plan.out.iterdir()] == ["thesis.tex"]


def test_a_file_a_colon_and_a_missing_permission_are_refused(plan, tmp_path):
    plan.out.write_text("a file")
    with pytest.raises(InvalidInput, match="is not a directory"):
        prepare(plan)
    with pytest.raises(InvalidInput, match="colon"):
        prepare(Plan(out=tmp_path / "a:b", jobs=3, steps=300))
    with pytest.raises(InvalidInput, match="cannot write to"):
        prepare(Plan(out=plan.out / "below a file", jobs=3, steps=300))


def test_a_demo_that_still_runs_is_not_disturbed(plan):
    prepare(plan)
    (plan.data / "giornata.db").write_text("precious")
    # A process with the name in its command line; it ends with its standard input.
    command = [sys.executable, "-c", "input(print('here', flush=True))", "giornata"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout.readline() == b"here\n"
        (plan.data / "server.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": running.pid}))
        with pytest.raises(InvalidInput, match=f"another demo runs .* {running.pid}"):
            prepare(plan)
        running.communicate(b"\n")
    assert (plan.data / "giornata.db").exists()
    prepare(plan)
    assert not (plan.data / "giornata.db").exists()


def test_the_users_own_installation_has_no_say():
    environment = {"GIORNATA_URL": "https://elsewhere", "GIORNATA_API_KEY": "secret", "PATH": "/bin"}
    assert own_environment(environment) == {"PATH": "/bin", "GIORNATA_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
