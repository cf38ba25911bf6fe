"""docs/security.md: each threat names tests, and each test that it names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ENEMIES = (
    "tenant",
    "member",
    "node",
    "picture",
    "model file",
    "webhook receiver",
    "stolen key",
    "local user",
    "network",
)


def rows() -> list[list[str]]:
    """The rows of the tables of threats: threat, answer, tests."""
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines() if line[:2] == "| "
    ]
    return [row for row in cells if len(row) == 3 and row[0] != "threat"]


def test_every_enemy_has_a_section_with_threats() -> None:
    headings = " ".join(re.findall(r"^## (.*)$", PAGE, re.MULTILINE))
    assert [enemy for enemy in ENEMIES if enemy not in headings] == []
    assert len(rows()) >= 35


def test_every_threat_names_a_test_that_exists() -> None:
    texts = {file: (ROOT / file).read_text() for row in rows() for file, _ in NAMED.findall(row[2])}
    for threat, answer, tests in rows():
        assert answer
        assert ", ".join(f"`{file}::{test}`" for file, test in NAMED.findall(tests)) == tests != "", threat
        missing = [
            test
            for file, test in NAMED.findall(tests)
            if not re.search(rf"^(async )?def {test}\(", texts[file], re.MULTILINE)
        ]
        assert missing == [], threat
