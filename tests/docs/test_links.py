"""Relative links of README.md, CONTRIBUTING.md and CHANGELOG.md lead to files and headings that exist.

The pages below docs are checked by the build of the site, which these three are no part of.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)|\b(?:href|src)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


def anchor_of(heading: str) -> str:
    """The anchor that GitHub gives a heading: lower case, no punctuation, hyphens for spaces."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(text: str) -> set[str]:
    return {anchor_of(heading) for heading in HEADING.findall(FENCED.sub("", text))}


def relative_links(text: str) -> list[str]:
    targets = (markdown or html for markdown, html in LINK.findall(FENCED.sub("", text)))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def fault_of(page: Path, target: str) -> str | None:
    """The reason why a link of a page leads nowhere, or None."""
    path, _, anchor = target.partition("#")
    file = page.parent / path if path else page
    if not file.exists():
        return f"{page.name}: {target}: no such file"
    if anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
        return f"{page.name}: {target}: no such heading"
    return None


@pytest.mark.parametrize("name", PAGES)
def test_relative_link_leads_to_a_file_and_a_heading(name: str) -> None:
    page = ROOT / name
    links = relative_links(page.read_text(encoding="utf-8"))
    assert links
    assert [fault for target in links if (fault := fault_of(page, target))] == []


def test_link_to_a_missing_file_or_heading_is_a_fault(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(
        "# Two words: `code`\n\n[a](#two-words-code) [b](#other) [c](none.md) [d](https://example.org/e)\n"
    )
    links = relative_links(page.read_text())
    faults = [fault_of(page, target) for target in links]
    assert faults == [None, "README.md: #other: no such heading", "README.md: none.md: no such file"]
