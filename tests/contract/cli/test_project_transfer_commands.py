"""`giornata project export` and `import`, as people use them."""

import json

import pytest
from tests.fixtures.served import a_dataset
from typer.testing import CliRunner

from giornata.cli.main import app


@pytest.fixture
def typed(served, tmp_path):
    """Run a command with a key, by default that of the project's admin."""

    def call(*words, ok=True, key=served.keys.admin):
        around = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_DATA_HOME": str(tmp_path / "home")}
        around |= {"GIORNATA_URL": served.url, "GIORNATA_API_KEY": key}
        done = CliRunner().invoke(app, list(words), env=around)
        assert (done.exit_code == 0) is ok, done.output + done.stderr
        return done

    return call


def test_project_is_exported_and_imported_into_another_one(typed, served, tmp_path):
    dataset = a_dataset(served.client(), tmp_path)
    job = served.client().submit({"steps": 5}, kind="x-count")
    archive = tmp_path / "project.tar"
    said = typed("project", "export", str(archive))
    assert "1 dataset, 0 models and 1 job" in said.stdout
    assert "1 job had not ended" in said.stdout
    assert archive.stat().st_mode & 0o777 == 0o600
    done = json.loads(typed("project", "import", str(archive), "--json", key=served.keys.other_admin).stdout)
    assert (done["project_id"], done["datasets"], list(done["jobs"])) == ("other", 1, [job.id])
    other = served.client(served.keys.other_admin)
    assert [each.id for each in other.datasets()] == [dataset.id]
    assert other.get_job(done["jobs"][job.id]).state == "canceled"
    assert "exists" in typed("project", "export", str(archive), ok=False).stderr


def test_export_that_breaks_off_leaves_no_file(typed, served, tmp_path):
    dataset = a_dataset(served.client(), tmp_path)
    for file in (tmp_path / "blobs").rglob("*"):
        if file.is_file() and dataset.items[0].sha256 in file.name:
            file.unlink()
    folder = tmp_path / "exports"
    folder.mkdir()
    typed("project", "export", str(folder / "project.tar"), ok=False)
    assert list(folder.iterdir()) == []


def test_import_of_something_else_says_what_to_do(typed, tmp_path):
    (tmp_path / "photo.png").write_bytes(b"no archive")
    assert "giornata project export" in typed("project", "import", str(tmp_path / "photo.png"), ok=False).stderr
    typed("project", "import", str(tmp_path / "nothing.tar"), ok=False)
