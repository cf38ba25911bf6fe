"""Defaults < file < environment < flags; every fault at once."""

import pytest

from giornata.cli.settings import Settings, load_settings
from giornata.domain.errors import InvalidInput


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "giornata.toml"
    path.write_text('lease_s = 30.0\nport = 9000\nkinds = ["train", "x-count"]\n')
    return path


def test_the_file_wins_over_defaults_the_environment_over_it_and_flags_over_all(file, monkeypatch):
    assert load_settings().lease_s == Settings.model_fields["lease_s"].default
    assert load_settings(file).lease_s == 30.0
    monkeypatch.setenv("GIORNATA_LEASE_S", "20")
    monkeypatch.setenv("GIORNATA_PORT", "9001")
    settings = load_settings(file, lease_s=10.0, port=None)
    assert (settings.lease_s, settings.port, settings.kinds) == (10.0, 9001, ("train", "x-count"))


def test_every_fault_is_listed(tmp_path):
    path = tmp_path / "giornata.toml"
    path.write_text("lease_s = 0.1\nport = 99999\nprot = 1\n")
    with pytest.raises(InvalidInput) as refused:
        load_settings(path)
    assert {fault.where for fault in refused.value.faults} == {"lease_s", "port", "prot"}


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(InvalidInput, match="no such file"):
        load_settings(tmp_path / "missing.toml")


def test_settings_do_not_change():
    with pytest.raises(ValueError, match="frozen"):
        load_settings().port = 1
