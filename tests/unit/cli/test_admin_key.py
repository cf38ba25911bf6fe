"""The admin key that the settings name."""

from pathlib import Path

import pytest

from giornata.cli.operate.composition import open_control_plane
from giornata.cli.settings import Settings
from giornata.cli.settings.connection import connect
from giornata.control.access.authenticate import authenticate
from giornata.control.access.keys import create_key, revoke_key
from giornata.domain.errors import InvalidInput, Unauthenticated
from giornata.protocol.project.admin import CreateKey, Scope

FIRST = "gk_00000001_" + "a" * 43
SECOND = "gk_00000002_" + "b" * 43


def rig(data: Path, **more: object):
    return open_control_plane(Settings(data=data, **more), base_url=lambda: "http://localhost")


def refused(context, secret: str) -> bool:
    context.memory.forget_callers()
    try:
        authenticate(context, secret)
    except Unauthenticated:
        return True
    return False


def test_the_key_of_the_settings_governs_from_the_first_start_on(tmp_path: Path) -> None:
    with rig(tmp_path / "data", admin_key=FIRST) as opened:
        assert opened.first_admin_key is None, "no other key is drawn"
        assert authenticate(opened.context, FIRST).is_root_admin
    with rig(tmp_path / "data", admin_key=FIRST) as opened:
        assert authenticate(opened.context, FIRST).is_root_admin
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert [path.name for path in files if FIRST.encode() in path.read_bytes()] == []


def test_changed_admin_key_in_settings_replaces_old_root_key_and_keeps_created_keys(tmp_path: Path) -> None:
    with rig(tmp_path / "data", admin_key=FIRST) as opened:
        made = create_key(opened.context, authenticate(opened.context, FIRST), CreateKey(scope=Scope.ADMIN)).secret
    with rig(tmp_path / "data", admin_key=SECOND) as opened:
        assert authenticate(opened.context, SECOND).is_root_admin
        assert refused(opened.context, FIRST)
        assert authenticate(opened.context, made).is_root_admin, "keys that people made stay"


def test_an_installation_that_drew_its_key_takes_one_from_the_settings_too(tmp_path: Path) -> None:
    with rig(tmp_path / "data") as opened:
        drawn = opened.first_admin_key
        assert drawn is not None
    file = tmp_path / "secret"
    file.write_text(FIRST + "\n")
    with rig(tmp_path / "data", admin_key_file=file) as opened:
        assert authenticate(opened.context, FIRST).is_root_admin
        assert authenticate(opened.context, drawn).is_root_admin


def test_a_key_that_was_revoked_stays_revoked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with rig(tmp_path / "data", admin_key=FIRST) as opened:
        root = authenticate(opened.context, FIRST)
        create_key(opened.context, root, CreateKey(scope=Scope.ADMIN))
        revoke_key(opened.context, root, root.key_id)
    with rig(tmp_path / "data", admin_key=FIRST) as opened:
        assert refused(opened.context, FIRST)
    assert "was revoked and stays so; give another key" in caplog.text


def test_a_key_of_something_else_is_refused(tmp_path: Path) -> None:
    with rig(tmp_path / "data", admin_key=FIRST) as opened:
        node = create_key(opened.context, authenticate(opened.context, FIRST), CreateKey(scope=Scope.NODE)).secret
    with pytest.raises(InvalidInput, match="of scope node of the project"), rig(tmp_path / "data", admin_key=node):
        pass


@pytest.mark.parametrize("key", ["gk_short", "hunter2hunter2hunter2hunter2hunter2hunter2", "gk_00000001_" + "ä" * 43])
def test_a_key_that_could_be_guessed_is_refused_and_not_repeated(tmp_path: Path, key: str) -> None:
    with pytest.raises(InvalidInput) as caught, rig(tmp_path / "data", admin_key=key):
        pass
    (fault,) = caught.value.faults
    assert fault.where == "admin_key"
    assert key not in str(fault)
    assert "secrets.token_urlsafe(32)" in fault.hint


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = tmp_path / "nowhere"
    with pytest.raises(InvalidInput, match="cannot be read"), rig(tmp_path / "data", admin_key_file=file):
        pass
    with pytest.raises(InvalidInput, match="admin_key_file is set as well"):
        connect(Settings(url="http://localhost:1", admin_key=FIRST, admin_key_file=file))


def test_commands_beside_the_server_use_the_same_key(tmp_path: Path) -> None:
    with connect(Settings(url="http://localhost:1", data=tmp_path, admin_key=FIRST)) as client:
        assert client is not None
