"""Where the demo puts things, and what it leaves alone."""

import json
import subprocess
import sys

import pytest
from examples.demo.server import demo_environment
from examples.demo.settings import MARK_FILE, OWN_PATHS, SUBJECTS, DemoSettings, prepare

from giornata.domain.errors import InvalidInput
from giornata.protocol.specs import TrainSpec


@pytest.fixture
def settings(tmp_path):
    return DemoSettings(out=tmp_path / "demo", jobs=3, steps=300)


def test_every_spec_is_valid_and_takes_several_checkpoints(settings):
    for subject in SUBJECTS:
        spec = TrainSpec.model_validate(settings.spec(subject, "ds_1", "ds_2"))
        assert spec.checkpointing_steps == 37
        assert spec.instance_prompt == SUBJECTS[subject]
    assert len({settings.spec(subject, "ds_1", "ds_2")["seed"] for subject in SUBJECTS}) == len(SUBJECTS)
    assert settings.spec("teal-heart", "ds_1", "ds_2") == settings.spec("teal-heart", "ds_1", "ds_2")


def test_prepare_removes_outputs_of_earlier_demo_and_no_other_files(settings):
    prepare(settings)
    for name in OWN_PATHS:
        if "." in name:
            (settings.out / name).write_text("old")
        else:
            (settings.out / name).mkdir(exist_ok=True)
            (settings.out / name / "old").write_text("old")
    (settings.out / "notes.txt").write_text("mine")
    prepare(settings)
    assert sorted(path.name for path in settings.out.iterdir()) == [MARK_FILE, "data", "logs", "notes.txt"]
    assert not any(settings.data.iterdir())


def test_a_directory_with_other_files_is_left_alone(settings):
    settings.out.mkdir()
    (settings.out / "thesis.tex").write_text("years of work")
    with pytest.raises(InvalidInput, match="files that are not a demo's"):
        prepare(settings)
    assert [path.name for path in settings.out.iterdir()] == ["thesis.tex"]


def test_a_file_a_colon_and_a_missing_permission_are_refused(settings, tmp_path):
    settings.out.write_text("a file")
    with pytest.raises(InvalidInput, match="is not a directory"):
        prepare(settings)
    with pytest.raises(InvalidInput, match="colon"):
        prepare(DemoSettings(out=tmp_path / "a:b", jobs=3, steps=300))
    with pytest.raises(InvalidInput, match="cannot write to"):
        prepare(DemoSettings(out=settings.out / "below a file", jobs=3, steps=300))


def test_a_demo_that_still_runs_is_not_disturbed(settings):
    prepare(settings)
    (settings.data / "giornata.db").write_text("precious")
    # A process with the name in its command line; it ends with its standard input.
    command = [sys.executable, "-c", "input(print('here', flush=True))", "giornata"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout.readline() == b"here\n"
        (settings.data / "server.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": running.pid}))
        with pytest.raises(InvalidInput, match=f"another demo runs .* {running.pid}"):
            prepare(settings)
        running.communicate(b"\n")
    assert (settings.data / "giornata.db").exists()
    prepare(settings)
    assert not (settings.data / "giornata.db").exists()


def test_the_users_own_installation_has_no_say():
    environment = {"GIORNATA_URL": "https://elsewhere", "GIORNATA_API_KEY": "secret", "PATH": "/bin"}
    assert demo_environment(environment) == {"PATH": "/bin", "GIORNATA_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
