"""docs/reference/failures.md names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs" / "reference" / "failures.md").read_text())


def test_every_test_that_the_page_names_exists():
    missing = [
        f"{file}::{test}"
        for file, test in NAMED
        if not (ROOT / file).is_file() or (test and f"def {test}(" not in (ROOT / file).read_text())
    ]
    assert len(NAMED) > 40
    assert missing == []
