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


def test_earlier_names_of_settings_are_accepted_and_a_new_name_wins(tmp_path, monkeypatch):
    path = tmp_path / "giornata.toml"
    path.write_text("stall_s = 60.0\ngarbage_after_s = 5.0\nbatch_join_window_s = 9.0\n")
    monkeypatch.setenv("GIORNATA_GARBAGE_AFTER_S", "6")
    monkeypatch.setenv("GIORNATA_JOIN_FOR_S", "7")
    monkeypatch.setenv("GIORNATA_BATCH_JOIN_WINDOW_S", "8")
    settings = load_settings(path, grace_s=3.0)
    assert (settings.stall_timeout_s, settings.orphan_ttl_s) == (60.0, 6.0), "a variable wins over the file"
    assert (settings.batch_join_window_s, settings.shutdown_grace_s) == (8.0, 3.0)


def test_an_earlier_name_of_a_setting_keeps_the_bounds(tmp_path):
    path = tmp_path / "giornata.toml"
    path.write_text("reallocations_share = 2.0\n")
    with pytest.raises(InvalidInput) as refused:
        load_settings(path)
    assert [fault.where for fault in refused.value.faults] == ["max_reallocated_share_per_hour"]
