"""Folders and files of an installation are closed to other users, and the signing key is sealed."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from tests.fixtures.second_user import NOBODY, needs_root, open_place, open_to_others, seen_by_nobody

from giornata.blobs.filesystem import FilesystemBlobs
from giornata.cli.operate.composition import SECRETS_KEY_FILE, open_control_plane
from giornata.cli.settings import Settings
from giornata.cli.settings.private_files import BLOBS, DATA, NODE, private_folder
from giornata.cli.system import RandomNames, SystemClock
from giornata.control.access.install import install, signing_key
from giornata.control.context import Foundations
from giornata.domain.errors import InvalidInput, Unavailable
from giornata.store.database.database import open_store
from giornata.store.database.migrate import migrate


@pytest.fixture(params=[0o000, 0o022], ids=lambda mask: f"umask-{mask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def opened(data: Path, **more: object) -> bytes:
    """Open a rig there as the server does; its signing key."""
    with open_control_plane(Settings(data=data, **more), base_url=lambda: "http://localhost") as rig:
        list(rig.context.blobs.list(""))
        rig.context.blobs.write("a/b/c", [b"secret bytes"])
        return signing_key(rig.context)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def database_bytes(data: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(data.glob("giornata.db*")))


def test_fresh_installation_is_closed_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    data = tmp_path / "data"
    opened(data)
    assert mode(data) == mode(data / "blobs") == mode(data / "blobs" / "objects") == 0o700
    assert mode(data / "giornata.db") == mode(data / "giornata.db.lock") == mode(data / SECRETS_KEY_FILE) == 0o600
    assert mode(data / "blobs" / "objects" / "a" / "b" / "c") == 0o600


@pytest.mark.usefixtures("umask")
def test_files_beside_an_open_database_are_closed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'own' / 'giornata.db'}"
    migrate(url)
    store = open_store(url)
    try:
        with store.begin() as tx:
            tx.projects.install(signing_key="s" * 40, at_ms=1)
        beside = {path.name: mode(path) for path in (tmp_path / "own").iterdir()}
    finally:
        store.close()
    assert beside == dict.fromkeys(["giornata.db", "giornata.db-wal", "giornata.db-shm", "giornata.db.lock"], 0o600)


def test_an_installation_of_an_earlier_version_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    opened(data)
    for path in (data, data / "blobs", data / "blobs" / "objects"):
        path.chmod(0o755)
    (data / "giornata.db").chmod(0o644)
    opened(data)
    assert mode(data) == mode(data / "blobs") == mode(data / "blobs" / "objects") == 0o700
    assert mode(data / "giornata.db") == 0o600
    assert f"{data} was open to other users (mode 0755) and has mode 0700 now" in caplog.text


@pytest.mark.parametrize(
    ("holds", "names"), [(DATA, ("giornata.db", "blobs", "server.log")), (BLOBS, ()), (NODE, ())]
)
def test_an_own_folder_is_closed(tmp_path: Path, holds: tuple[str, ...], names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name).touch()
    tmp_path.chmod(0o777)
    assert mode(private_folder(tmp_path, named="data", holds=holds)) == 0o700


def test_a_folder_with_other_things_in_it_is_left_alone_and_refused(tmp_path: Path) -> None:
    (tmp_path / "photographs").mkdir()
    tmp_path.chmod(0o755)
    with pytest.raises(InvalidInput) as refused:
        private_folder(tmp_path, named="data", holds=DATA)
    (fault,) = refused.value.faults
    assert fault.where == "data"
    assert "has mode 0755 and holds photographs" in fault.message
    assert "expected mode 0700" in fault.message
    assert f"chmod 700 {tmp_path}" in fault.hint
    assert mode(tmp_path) == 0o755


def test_a_folder_that_all_users_share_is_left_alone_and_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(InvalidInput, match="is shared by all users"):
        private_folder(tmp_path, named="data", holds=DATA)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777


@needs_root
def test_an_open_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    os.chown(tmp_path, NOBODY, NOBODY)
    with pytest.raises(InvalidInput) as refused:
        private_folder(tmp_path, named="blobs", holds=BLOBS)
    (fault,) = refused.value.faults
    assert f"has mode 0755 and belongs to user {NOBODY}" in fault.message
    assert f"chown 0 {tmp_path} && chmod 700 {tmp_path}" in fault.hint


@needs_root
def test_an_open_database_of_another_user_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "giornata.db"
    file.touch()
    file.chmod(0o644)
    os.chown(file, NOBODY, NOBODY)
    with pytest.raises(InvalidInput, match=r"has mode 0644 and belongs to user 65534; expected mode 0600"):
        migrate(f"sqlite:///{file}")


def test_a_database_in_a_folder_that_others_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o770)
    with pytest.raises(InvalidInput, match="others may write to it"):
        migrate(f"sqlite:///{folder / 'giornata.db'}")


@needs_root
def test_data_and_blob_folders_are_unreadable_to_other_user(umask: int) -> None:
    with open_place() as place:
        (place / "plain.txt").write_text("everybody may read this")
        (place / "plain.txt").chmod(0o644)
        opened(place / "data")
        FilesystemBlobs(place / "alone", signing_key=b"k" * 32, base_url="http://h", clock=SystemClock()).write(
            "a/b", [b"a picture"]
        )
        seen = {Path(path).relative_to(place).parts[0] for path in seen_by_nobody(place)}
        inside = seen_by_nobody(place / "data") + seen_by_nobody(place / "alone")
    assert seen == {"plain.txt", "data", "alone"}, "names beside the folders may be listed"
    assert inside == []


def test_files_made_by_server_process_are_private_under_keep_private_umask(tmp_path: Path) -> None:
    """By the umask that the command sets: nothing here says a mode by itself."""
    before = os.umask(0o000)
    try:
        from giornata.cli.settings.private_files import keep_private

        assert keep_private() == 0o000
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "file").write_text("private")
        assert open_to_others(tmp_path / "folder") == {}
    finally:
        os.umask(before)


def test_a_database_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="Is a directory"):
        migrate(f"sqlite:///{tmp_path}")


# ---- the signing key


def test_the_signing_key_is_not_in_the_databases_bytes(tmp_path: Path) -> None:
    key = opened(tmp_path / "data")
    assert len(key) >= 32
    assert key not in database_bytes(tmp_path / "data")


def test_a_key_that_lies_in_the_clear_is_sealed_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    url = f"sqlite:///{data / 'giornata.db'}"
    migrate(url)
    store = open_store(url)
    old = Foundations(store=store, clock=SystemClock(), names=RandomNames())
    install(old)
    key = signing_key(old)
    store.close()
    assert key in database_bytes(data)

    assert opened(data) == key, "leases that are out stay good"
    assert key not in database_bytes(data)
    assert "the signing key is sealed now" in caplog.text
    assert opened(data) == key


def test_missing_sealing_key_stops_startup_until_new_signing_key_is_requested(tmp_path: Path) -> None:
    data = tmp_path / "data"
    key = opened(data)
    (data / SECRETS_KEY_FILE).unlink()
    with pytest.raises(Unavailable, match="sealed with another key than the secrets_key") as refused:
        opened(data)
    assert "--new-signing-key" in str(refused.value)
    with open_control_plane(Settings(data=data), base_url=lambda: "http://localhost", new_signing_key=True) as rig:
        renewed = signing_key(rig.context)
    assert renewed != key
    assert opened(data) == renewed
    assert key not in database_bytes(data)


def test_a_sealed_secret_of_a_project_is_no_signing_key(tmp_path: Path) -> None:
    data = tmp_path / "data"
    opened(data)
    sealed = Fernet((data / SECRETS_KEY_FILE).read_text().strip()).encrypt(b'["project", "name", "value"]').decode()
    with sqlite3.connect(data / "giornata.db") as connection:
        connection.execute("UPDATE installation SET sealed_signing_key = ?", (sealed,))
    connection.close()
    with pytest.raises(Unavailable, match="sealed with another key"):
        opened(data)


def test_postgresql_without_a_sealing_key_is_refused(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data", database="postgresql://nowhere.invalid/giornata")
    with pytest.raises(InvalidInput) as refused, open_control_plane(settings, base_url=lambda: "http://localhost"):
        pass
    (fault,) = refused.value.faults
    assert fault.where == "secrets_key"
    assert "is not set" in fault.message
    assert "give every server of this database the same GIORNATA_SECRETS_KEY" in fault.hint
