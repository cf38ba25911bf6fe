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
    tables = re.findall(r"^\| threat \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    lines = [line for table in tables for line in table.splitlines()]
    return [[cell.strip() for cell in line.removeprefix("|").removesuffix("|").split(" | ")] for line in lines]


def test_every_enemy_has_a_section_with_threats() -> None:
    headings = " ".join(re.findall(r"^## (.*)$", PAGE, re.MULTILINE))
    assert [enemy for enemy in ENEMIES if enemy not in headings] == []
    assert len(rows()) >= 35


def test_every_threat_names_a_test_that_exists() -> None:
    assert [row for row in rows() if len(row) != 3] == []
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
