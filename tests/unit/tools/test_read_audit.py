"""What `make audit` makes of pip-audit's report."""

from tools.read_audit import read_audit

SOUND = {"name": "one", "version": "1", "vulns": []}
HOLED = {"name": "two", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]}
SKIPPED = {"name": "three", "skip_reason": "not found"}


def test_audit_is_good_only_where_every_pin_was_looked_up_and_none_has_a_hole() -> None:
    assert read_audit({"dependencies": [SOUND]}) == (["1 pins were looked up; 0 known holes"], True)
    for dependencies in ([], [SKIPPED], [SOUND, SKIPPED], [SOUND, HOLED]):
        assert not read_audit({"dependencies": dependencies})[1], dependencies


def test_audit_names_holes_and_what_was_not_looked_up() -> None:
    lines, _ = read_audit({"dependencies": [SOUND, HOLED, SKIPPED]})
    assert lines[0] == "two 2: PYSEC-1, mended in 2.1"
    assert "2 pins were looked up; 1 known holes" in lines
    assert "1 were not looked up" in lines[-1] and "three" in lines[-1]
