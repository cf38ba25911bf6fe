"""docs/troubleshooting.md quotes messages that the code has."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (`[^|]+`) \|", re.MULTILINE)


def test_every_message_of_the_page_is_in_the_code() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "giornata").rglob("*.py"))
    quoted = [part for row in ROW.findall(PAGE) for part in re.findall(r"`([^`]+)`", row)]
    assert len(quoted) > 20
    assert [part for part in quoted if part not in code] == []
