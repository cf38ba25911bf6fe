"""docs/explanation/defects.md: all of D1 to D120, each with tests that exist or with a reason."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "explanation" / "defects.md").read_text().splitlines()
    if line.startswith("| D")
]
EXCUSES = ("*Cannot arise:* ", "*Not here yet:* ")


def named_in(row: list[str]) -> list[tuple[str, str]]:
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row[3])


def test_all_are_there_exactly_once() -> None:
    found = Counter(int(number) for row in ROWS for number in re.findall(r"\bD(\d+)\b", row[0]))
    assert found == Counter(range(1, 121))


def test_each_names_a_test_or_a_reason() -> None:
    bare = [row[0] for row in ROWS if not named_in(row) and not any(excuse in row[2] for excuse in EXCUSES)]
    assert bare == []
    assert sum(bool(named_in(row)) for row in ROWS) > 80


def test_every_test_that_it_names_exists() -> None:
    texts = {file: (ROOT / file).read_text() for row in ROWS for file, _ in named_in(row) if (ROOT / file).is_file()}
    missing = [
        f"{row[0]}: {file}::{test}"
        for row in ROWS
        for file, test in named_in(row)
        if not re.search(rf"^(async )?def {test}\(", texts.get(file, ""), re.MULTILINE)
    ]
    assert missing == []


def test_row_of_a_defect_names_its_tests_and_no_other() -> None:
    for row in ROWS:
        assert len(row) == 4, row[0]
        assert row[3] == "–" or ", ".join(f"`{file}::{test}`" for file, test in named_in(row)) == row[3], row[0]
