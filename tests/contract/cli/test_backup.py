"""`giornata backup` of an installation that runs, and `giornata restore` of what it wrote."""

import io
import sqlite3
import stat
import tarfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fixtures.served import SECRETS_KEY, Served, WallClock, a_dataset
from typer.testing import CliRunner

from giornata.cli.main import app
from giornata.cli.maintenance.archive import EmbeddedInstallation, write_backup
from giornata.cli.operate.composition import open_control_plane
from giornata.cli.settings import Settings
from giornata.store.stored_objects import SqliteSnapshot

Run = Callable[..., object]


@pytest.fixture
def installation(served: Served, tmp_path: Path) -> EmbeddedInstallation:
    """A served installation with a dataset of three files, and the key files of `giornata up`."""
    a_dataset(served.client(), tmp_path)
    for name, text in (("secrets.key", SECRETS_KEY), ("admin.key", served.keys.admin)):
        (tmp_path / name).write_text(text + "\n")
    return EmbeddedInstallation(database=tmp_path / "giornata.db", blobs=tmp_path / "blobs", data=tmp_path)


@pytest.fixture
def made(installation: EmbeddedInstallation, tmp_path: Path) -> Path:
    """A backup of the installation."""
    target = tmp_path / "made.tar"
    write_backup(target, installation, with_keys=False, clock=WallClock())
    return target


def restored_to(file: Path, data: Path):
    return CliRunner().invoke(app, ["--data", str(data), "restore", str(file)])


def rows(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return list(connection.iterdump())


def rewritten(file: Path, change: Callable[[str, bytes], tuple[str, bytes] | None]) -> Path:
    """A copy of the backup with other members: each one as `change` returns it, or without it for None."""
    other = file.with_name("other.tar")
    with tarfile.open(file) as source, tarfile.open(other, "w") as target:
        for member in source:
            content = source.extractfile(member).read()
            if (new := change(member.name, content)) is not None:
                changed = tarfile.TarInfo(new[0])
                changed.size = len(new[1])
                target.addfile(changed, io.BytesIO(new[1]))
    return other


def test_a_backup_of_a_running_server_is_restored_with_every_row_and_every_byte(
    installation: EmbeddedInstallation, made: Path, served: Served, tmp_path: Path
) -> None:
    done = restored_to(made, tmp_path / "new")
    assert done.exit_code == 0, done.output
    assert rows(tmp_path / "new" / "giornata.db") == rows(installation.database)
    settings = Settings(data=tmp_path / "new", secrets_key=SECRETS_KEY)
    with open_control_plane(settings, base_url=lambda: "http://localhost") as opened:
        for each in SqliteSnapshot(path=installation.database).objects():
            assert opened.context.blobs.digest(each.key) == served.ctx.blobs.digest(each.key)


def test_a_backup_is_readable_by_its_owner_only_and_never_overwritten(made: Path, installation) -> None:
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    again = CliRunner().invoke(app, ["--data", str(installation.data), "backup", str(made)])
    assert again.exit_code == 2
    assert f"{made} exists" in again.stderr


@pytest.mark.parametrize("with_keys", [False, True])
def test_keys_are_in_a_backup_when_they_are_asked_for_and_never_otherwise(
    with_keys: bool, installation: EmbeddedInstallation, served: Served, tmp_path: Path
) -> None:
    target = tmp_path / "keys.tar"
    flags = ["--with-keys"] if with_keys else []
    done = CliRunner().invoke(app, ["--data", str(tmp_path), "backup", str(target), *flags])
    assert done.exit_code == 0, done.stderr
    content = target.read_bytes()
    assert (SECRETS_KEY.encode() in content) is with_keys
    assert (served.keys.admin.encode() in content) is with_keys
    restored_to(target, tmp_path / "new")
    there = sorted(path.name for path in (tmp_path / "new").glob("*.key"))
    assert there == (["admin.key", "secrets.key"] if with_keys else [])
    assert all(stat.S_IMODE((tmp_path / "new" / name).stat().st_mode) == 0o600 for name in there)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected(EmbeddedInstallation):
    """An installation whose collector deletes one object, row first, when the backup comes to it."""

    key: str

    def object_path(self, key: str) -> Path:
        path = EmbeddedInstallation.object_path(self, key)
        if key == self.key and path.exists():
            with closing(sqlite3.connect(self.database)) as connection, connection:
                connection.execute("DELETE FROM dataset_items")
                connection.execute("DELETE FROM blobs WHERE key = ?", (key,))
            path.unlink()
        return path


def test_an_object_that_is_deleted_during_the_backup_is_named_by_no_row_of_it(
    installation: EmbeddedInstallation, tmp_path: Path
) -> None:
    keys = [each.key for each in SqliteSnapshot(path=installation.database).objects()]
    collected = Collected(
        database=installation.database, blobs=installation.blobs, data=installation.data, key=keys[-1]
    )
    manifest = write_backup(tmp_path / "made.tar", collected, with_keys=False, clock=WallClock())
    assert (manifest.objects, manifest.damaged) == (len(keys) - 1, [])
    done = restored_to(tmp_path / "made.tar", tmp_path / "new")
    assert done.exit_code == 0, done.stderr
    restored = SqliteSnapshot(path=tmp_path / "new" / "giornata.db")
    assert sorted(each.key for each in restored.objects()) == sorted(keys[:-1])


def test_bytes_that_storage_had_lost_or_changed_before_are_named_and_hinder_nothing(
    installation: EmbeddedInstallation, tmp_path: Path
) -> None:
    lost, changed, whole = sorted(each.key for each in SqliteSnapshot(path=installation.database).objects())
    installation.object_path(lost).unlink()
    installation.object_path(changed).write_bytes(b"other bytes")
    manifest = write_backup(tmp_path / "made.tar", installation, with_keys=False, clock=WallClock())
    assert manifest.damaged == [lost, changed]
    done = restored_to(tmp_path / "made.tar", tmp_path / "new")
    assert done.exit_code == 0, done.stderr
    assert lost in done.output
    assert (tmp_path / "new" / "blobs" / "objects" / whole).exists()


def test_a_backup_with_one_changed_byte_is_refused_and_leaves_no_database(made: Path, tmp_path: Path) -> None:
    def flip(name: str, content: bytes) -> tuple[str, bytes]:
        return name, (b"?" + content[1:] if name.startswith("objects/") else content)

    done = restored_to(rewritten(made, flip), tmp_path / "new")
    assert done.exit_code == 2
    assert "bytes that hash to" in done.stderr
    assert sorted(path.name for path in (tmp_path / "new").glob("giornata.db*")) == ["giornata.db.lock"]


def test_a_backup_without_an_object_is_refused(made: Path, tmp_path: Path) -> None:
    def drop(name: str, content: bytes) -> tuple[str, bytes] | None:
        return None if name.startswith("objects/") else (name, content)

    done = restored_to(rewritten(made, drop), tmp_path / "new")
    assert done.exit_code == 2
    assert "is not there; expected" in done.stderr


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_backup_that_was_cut_off_is_refused_and_restored_once_it_is_whole(
    share: float, made: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.tar"
    cut.write_bytes(made.read_bytes()[: int(share * made.stat().st_size)])
    done = restored_to(cut, tmp_path / "new")
    assert done.exit_code == 2
    assert "cut off" in done.stderr
    assert restored_to(made, tmp_path / "new").exit_code == 0


def test_a_backup_is_not_restored_over_a_database(made: Path, tmp_path: Path) -> None:
    assert restored_to(made, tmp_path / "new").exit_code == 0
    before = rows(tmp_path / "new" / "giornata.db")
    done = restored_to(made, tmp_path / "new")
    assert done.exit_code == 2
    assert "has a database already" in done.stderr
    assert rows(tmp_path / "new" / "giornata.db") == before


@pytest.mark.parametrize("name", ["objects/../../escaped", "../escaped", "keys/../escaped"])
def test_a_member_with_a_path_of_its_own_is_refused(name: str, made: Path, tmp_path: Path) -> None:
    def rename(old: str, content: bytes) -> tuple[str, bytes]:
        return (name if old == "giornata.db" else old), content

    done = restored_to(rewritten(made, rename), tmp_path / "new")
    assert done.exit_code == 2
    assert not (tmp_path / "escaped").exists()


def test_an_installation_on_postgresql_is_refused_with_the_page_that_helps(tmp_path: Path) -> None:
    environment = {"GIORNATA_DATABASE": "postgresql://host/name"}
    done = CliRunner().invoke(app, ["backup", str(tmp_path / "made.tar")], env=environment)
    assert done.exit_code == 2
    assert "docs/how-to/backup.md" in done.stderr
