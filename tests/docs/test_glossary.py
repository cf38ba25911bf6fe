"""Each word of the glossary has one row."""

import re
from collections import Counter
from pathlib import Path

GLOSSARY = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| ([^|]+?) \|", re.MULTILINE)
HEADS = {"word", "old"}


def test_word_of_the_glossary_has_one_row() -> None:
    words = [word for cell in ROW.findall(GLOSSARY) if cell not in HEADS for word in cell.split(", ")]
    assert len(words) > 100
    assert [word for word, times in Counter(words).items() if times > 1] == []
