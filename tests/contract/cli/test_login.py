"""Servers that a user is logged in to: what is kept, who may read it, and what wins over it."""

import json
import stat

import pytest
from typer.testing import CliRunner

from giornata.cli.main import app
from giornata.cli.settings import Settings
from giornata.cli.settings.connection import target_of
from giornata.cli.settings.contexts import Contexts, SavedContext
from giornata.domain.errors import Unauthenticated, Unavailable


@pytest.fixture
def typed(served, tmp_path):
    """Run a command as somebody who has set nothing."""

    def call(*arguments, text=None, **environment):
        around = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_DATA_HOME": str(tmp_path / "home")}
        return CliRunner().invoke(app, list(arguments), input=text, env=around | environment)

    return call


@pytest.fixture
def file(tmp_path):
    return tmp_path / "config" / "giornata" / "contexts.json"


def test_a_login_is_checked_and_kept_for_its_owner_alone(typed, served, file):
    done = typed("login", served.url, "--key", text=f"{served.keys.member}\n")
    assert done.exit_code == 0, done.stderr
    assert "project default" in done.stdout
    assert served.keys.member not in done.stdout + done.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert typed("jobs").exit_code == 0


@pytest.mark.parametrize(
    ("key", "said"),
    [("gk_00000000_wrong", "does not know this key"), ("", "is empty"), ("two words", "characters that no key has")],
)
def test_a_key_that_is_not_known_is_not_kept(typed, served, file, key, said):
    done = typed("login", served.url, "--key", text=f"{key}\n")
    assert done.exit_code != 0
    assert said in done.stderr
    assert not file.exists()


def test_a_key_of_a_node_and_a_server_that_is_none_are_refused(typed, served, file):
    done = typed("login", served.url, "--key", text=f"{served.keys.node}\n")
    assert (done.exit_code, "scope node" in done.stderr) == (1, True)
    done = typed("login", "localhost:8470", "--key", text=f"{served.keys.member}\n")
    assert (done.exit_code, "not the address of a server" in done.stderr) == (2, True)
    done = typed("login", f"{served.url}#gk_in_the_url", "--key", text="")
    assert "gk_in_the_url" not in done.stderr
    assert not file.exists()


def test_a_key_is_never_taken_from_the_command_line(typed, served, file):
    done = typed("--api-key", served.keys.member, "login", served.url, "--key", text=f"{served.keys.member}\n")
    assert done.exit_code == 2
    assert "list of processes" in done.stderr
    assert not file.exists()


def test_contexts_are_listed_without_keys_and_used_by_name(typed, served, file):
    for name, key in (("one", served.keys.member), ("two", served.keys.other_admin)):
        assert typed("login", served.url, "--key", "--name", name, text=key).exit_code == 0
    listed = typed("contexts", "--json").stdout
    assert [(each["name"], each["current"]) for each in json.loads(listed)["items"]] == [
        ("local", False),
        ("one", False),
        ("two", True),
    ]
    assert served.keys.member not in listed
    assert [each["id"] for each in json.loads(typed("project", "list", "--json").stdout)["items"]] == ["other"]
    assert typed("use", "one").exit_code == 0
    assert json.loads(file.read_text())["current"] == "one"
    assert typed("use", "three").exit_code == 2
    assert typed("logout").exit_code == 0
    left = json.loads(file.read_text())
    assert (left["current"], list(left["contexts"])) == (None, ["two"])
    assert "no server runs on" in typed("jobs").stderr
    assert typed("logout").exit_code == 2
    assert typed("use", "two").exit_code == 0
    assert typed("use", "local").exit_code == 0
    assert "no server runs on" in typed("jobs").stderr


def test_a_file_that_others_may_read_is_refused(typed, served, file):
    typed("login", served.url, "--key", text=served.keys.member)
    file.chmod(0o644)
    refused = typed("jobs")
    assert (refused.exit_code, "chmod 600" in refused.stderr) == (2, True)
    file.chmod(0o600)
    file.write_text("{")
    assert "not a file of contexts" in typed("jobs").stderr


def saved(**contexts):
    entries = {name: SavedContext(url=url, api_key=f"gk_{name}") for name, url in contexts.items()}
    return lambda: Contexts(current=next(iter(entries), None), contexts=entries)


def installation(folder, key="gk_local"):
    folder.mkdir()
    (folder / "server.json").write_text(json.dumps({"url": "http://here:1"}))
    (folder / "admin.key").write_text(f"{key}\n")
    return folder


def target(settings, contexts):
    found = target_of(settings, contexts)
    return found.url, found.api_key, found.local


def test_url_wins_over_data_and_that_over_the_context_and_that_over_the_installation(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    data = installation(tmp_path / "giornata")
    far = saved(far="https://far")
    assert target(Settings(), saved()) == ("http://here:1", "gk_local", True)
    assert target(Settings(), far) == ("https://far", "gk_far", False)
    assert target(Settings(data=data), far) == ("http://here:1", "gk_local", True)
    assert target(Settings(url="https://other", api_key="gk_mine", data=data), far)[:2] == (
        "https://other",
        "gk_mine",
    )
    assert target(Settings(api_key="gk_mine"), far) == ("https://far", "gk_mine", False)


def test_the_key_of_a_context_goes_to_its_own_server_only(tmp_path):
    contexts = saved(far="https://far", near="https://near")
    nowhere = {"data": tmp_path / "nothing"}
    assert target(Settings(url="https://near/", **nowhere), contexts)[:2] == ("https://near/", "gk_near")
    with pytest.raises(Unauthenticated, match="there is no key"):
        target(Settings(url="https://third", **nowhere), contexts)
    with pytest.raises(Unavailable, match="no server runs on"):
        target(Settings(**nowhere), contexts)


def test_a_data_directory_on_the_command_line_wins_over_a_url_of_the_environment(typed, served, tmp_path):
    installation(tmp_path / "mine").joinpath("server.json").write_text(json.dumps({"url": served.url}))
    (tmp_path / "mine" / "admin.key").write_text(served.keys.admin)
    done = typed("--data", str(tmp_path / "mine"), "jobs", GIORNATA_URL="http://127.0.0.1:1")
    assert done.exit_code == 0, done.stderr
