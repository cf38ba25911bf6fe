"""Each error says what to do about it, and hints name the server that the command was about."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.fixtures.served import a_dataset
from typer.testing import CliRunner

from giornata.api.server import listen
from giornata.cli.main import app
from giornata.cli.operate.composition import open_control_plane
from giornata.cli.settings import load_settings
from giornata.cli.settings.hints import note_local
from giornata.cli.ui.output import Output
from giornata.domain.errors import NotFound, OverBudget, Unauthenticated, Unavailable, Unreachable
from giornata.store.database.database import open_store


def step(error, capsys, see=("jobs",)):
    Output(as_json=False, see=see).error(error)
    return " ".join(capsys.readouterr().err.split())


def test_errors_of_different_kinds_have_different_next_steps(capsys):
    errors = [NotFound("a"), Unauthenticated("b"), OverBudget("c"), Unavailable("d"), Unreachable("e")]
    said = [step(error, capsys) for error in errors]
    assert len(set(said)) == len(errors)
    assert "giornata machines" in step(NotFound("f"), capsys, see=("machines",))
    assert step(Unavailable("g", hint="Do this."), capsys).endswith("Do this.")
    Output(as_json=True).error(Unavailable("g", hint="Do this."))
    assert json.loads(capsys.readouterr().out)["error"]["hint"] == "Do this."


def test_an_unknown_machine_key_project_fleet_or_secret_points_at_its_own_list(run):
    lists = {
        ("machines", "release", "m-9"): "machines",
        ("key", "revoke", "key_9"): "key list",
        ("project", "budget", "nowhere", "5"): "project list",
        ("secrets", "delete", "NOPE"): "secrets list",
        ("fleets", "nowhere"): "fleets",
        ("job", "job_01m81qwfx06fapep5av64wzd4w"): "jobs",
    }
    for command, wanted in lists.items():
        done = run(*command)
        assert done.status == 1
        assert done.errors.strip().endswith(wanted), command


def test_a_port_in_use_a_locked_database_and_a_database_that_is_down_say_what_to_do(tmp_path):
    with listen("127.0.0.1", 0) as taken, pytest.raises(Unavailable, match="in use") as port:
        listen("127.0.0.1", taken.getsockname()[1])
    assert "--port" in port.value.hint
    (tmp_path / "data").mkdir()
    url = f"sqlite:///{tmp_path / 'data' / 'giornata.db'}"
    store = open_store(url)
    settings = load_settings(data=tmp_path / "data")
    try:
        with (
            pytest.raises(Unavailable, match=str(os.getpid())) as locked,
            open_control_plane(settings, base_url=lambda: ""),
        ):
            pass
    finally:
        store.close()
    assert "--data" in locked.value.hint
    away = load_settings(data=tmp_path / "data", database="postgresql://me:secret@127.0.0.1:1/giornata")
    with (
        pytest.raises(Unavailable, match=r"PostgreSQL at 127.0.0.1:1/giornata") as down,
        open_control_plane(away, base_url=lambda: ""),
    ):
        pass
    assert "Start PostgreSQL" in down.value.hint
    assert "secret" not in str(down.value)


def test_hints_repeat_the_server_that_was_given_and_never_the_key(run, served, tmp_path):
    client = served.client(served.keys.admin)
    spec = {"model": "some/model", "dataset": a_dataset(client, tmp_path).id, "instance_prompt": "a"}
    job = client.submit(spec, name="dog")
    said = run("cancel", job.id).output
    data = shlex.quote(str(tmp_path / "data"))
    assert f"giornata --url {served.url} --data {data} retry {job.id}" in said
    assert served.keys.admin not in said
    again = run("retry", "dog").output
    assert f"giornata --url {served.url} --data {data} follow job_" in again


def test_options_of_earlier_command_do_not_appear_in_hint_of_next(run, capsys):
    run("jobs")
    assert step(NotFound("a"), capsys).endswith("giornata jobs")


def test_command_without_any_server_suggests_up_and_login(tmp_path):
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    none = CliRunner().invoke(app, ["--data", str(tmp_path / "none"), "jobs"], env=environment)
    assert f"giornata --data {tmp_path / 'none'} up" in none.stderr
    assert "giornata login" in none.stderr


def test_a_server_of_this_machine_that_is_gone_is_started_again(capsys):
    note_local(True)
    try:
        assert "giornata up" in step(Unreachable("gone"), capsys)
    finally:
        note_local(False)
    assert "giornata contexts" in step(Unreachable("gone"), capsys)


@pytest.mark.parametrize("amount", ["-5", "-0.01"])
def test_a_negative_budget_is_refused_as_an_amount(run, amount):
    for command in (("budget", "last", amount), ("project", "budget", "default", amount)):
        done = run(*command)
        assert done.status == 2
        assert f"'{amount}' is not between 0 and" in done.errors


@pytest.mark.parametrize("option", ["--data", "--url", "--config"])
def test_an_option_of_all_commands_behind_the_command_is_told_its_place(option):
    done = CliRunner().invoke(app, ["jobs", option, "somewhere"])
    assert done.exit_code == 2
    assert f"{option} stands before the command: giornata {option} … jobs" in " ".join(done.stderr.split())
    assert "Possible" not in done.stderr
    other = CliRunner().invoke(app, ["jobs", "--stat", "running"])
    assert "No such option: --stat" in other.stderr


def test_the_simulator_without_the_servers_libraries_says_what_to_install():
    script = """
import sys
sys.modules["sqlalchemy"] = None
from giornata.cli.settings.hints import note_local
from giornata.cli.main import app
app(["simulate", "--list"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "sqlalchemy is not installed" in done.stderr
    assert "in a clone of Giornata" in done.stderr
    assert ".[server]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("scenario", ["affinity", "audits"])
def test_scenario_that_is_not_drawn_refuses_each_option_that_it_has_no_use_for(scenario, tmp_path):
    done = CliRunner().invoke(
        app, ["simulate", scenario, "--open", "--jobs", "5", "--save", str(tmp_path / "run.json")]
    )
    assert done.exit_code == 2
    for option in ("--open", "--jobs", "--save"):
        assert f"{option}: is no option of the scenario {scenario}" in done.stderr


def test_a_tiny_model_goes_into_no_folder_that_cannot_take_it(tmp_path):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("not a model")
    places = {"file": "is a file", "file/below": "is a file", "full": "holds files that are no model"}
    places["/proc/model"] = "/proc is not writable"  # root is told that it may write there
    for place, said in places.items():
        done = CliRunner().invoke(app, ["tiny-model", str(tmp_path / place)])
        assert done.exit_code == 2, place
        assert said in done.stderr, place
        assert "Traceback" not in done.stderr
    assert (tmp_path / "full" / "mine.txt").read_text() == "not a model"


@pytest.fixture
def open_folder():
    """One that every user may look into, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        for below in folder.iterdir():
            below.chmod(0o700)


def test_a_folder_without_rights_is_refused_for_a_model(open_folder):
    (open_folder / "closed").mkdir()
    (open_folder / "closed").chmod(0o555)  # whatever umask another test has left
    (open_folder / "hidden" / "below").mkdir(parents=True)
    (open_folder / "hidden").chmod(0)
    script = """
import os, sys
from pathlib import Path
from giornata.cli.tools.model import folder_faults
if os.getuid() == 0:
    os.setuid(65534)  # root may write everywhere
for place in sys.argv[1:]:
    print(*(fault.message for fault in folder_faults(Path(place))))
"""
    places = [str(open_folder / place) for place in ("closed", "closed/below", "hidden/below/x")]
    done = subprocess.run([sys.executable, "-c", script, *places], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"{open_folder} is not writable",  # the model is made beside the folder, and renamed
        f"{open_folder / 'closed'} is not writable",
        f"{open_folder / 'hidden'} cannot be read",
    ]
