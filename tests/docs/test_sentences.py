"""Sentences of the pages that people read first are short, and begin with a subject.

Code, tables, headings and targets of links are left aside. A span of code counts as one word.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        ROOT / "README.md",
        DOCS / "architecture.md",
        DOCS / "tour.md",
        *DOCS.glob("tutorials/*.md"),
        *DOCS.glob("how-to/**/*.md"),
        *DOCS.glob("reference/*.md"),
        *DOCS.glob("explanation/*.md"),
        *(DOCS / page for page in ("index.md", "coming-from.md", "gpus.md", "security.md", "troubleshooting.md")),
        ROOT / "CONTRIBUTING.md",
    ]
)
MOST_WORDS = 35
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
ITEM = re.compile(r"([-*+]|\d+\.)\s+")
IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"`[^`]*`")
END = re.compile(r"(?<=[.!?])[\"”)*]*\s+(?=[\"“(\[*]*[A-Z0-9])")
NO_SUBJECT = re.compile(r"(Who|Whoever|Whose|What|Whatever|Nobody)\b(?!.*\?$)")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def paragraphs(text: str) -> Iterator[str]:
    """Each paragraph and list item as one line, without tables and headings."""
    lines: list[str] = []
    for raw in [*COMMENT.sub("", FENCED.sub("\n", text)).splitlines(), ""]:
        line = raw.strip().removeprefix(">").strip()
        aside = not line or line.startswith(("#", "|", "<"))
        if lines and (aside or ITEM.match(line)):
            yield " ".join(lines)
            lines = []
        if not aside:
            lines.append(ITEM.sub("", line, count=1) if ITEM.match(line) else line)


def sentences(text: str) -> Iterator[str]:
    for paragraph in paragraphs(text):
        plain = CODE.sub("X", LINK.sub(r"\1", IMAGE.sub("", paragraph))).replace("**", "")
        yield from (sentence for sentence in END.split(plain) if sentence)


def words(sentence: str) -> int:
    return sum(1 for word in sentence.split() if re.search(r"\w", word))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_sentence_has_at_most_thirty_five_words(page: Path) -> None:
    found = [sentence for sentence in sentences(page.read_text(encoding="utf-8")) if words(sentence) > MOST_WORDS]
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_sentence_begins_with_a_subject(page: Path) -> None:
    assert [each for each in sentences(page.read_text(encoding="utf-8")) if NO_SUBJECT.match(each)] == []


def test_long_sentence_is_found_beside_code_tables_and_links() -> None:
    long = " ".join(["word"] * (MOST_WORDS + 1))
    aside = f"# {long}\n\n| {long} |\n\n```\n{long}\n```\n"
    text = f"{aside}\n- [One]({'x' * 50}) is short. It {long}\n  and on.\n\nWhat it is.\n"
    found = list(sentences(text))
    assert [words(each) > MOST_WORDS for each in found] == [False, True, False]
    assert [bool(NO_SUBJECT.match(each)) for each in found] == [False, False, True]
