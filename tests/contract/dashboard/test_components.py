"""The page of components shows all there are: each macro, and each token of the style sheet."""

import re
from pathlib import Path

from giornata.dashboard.component_pages import TOKENS
from giornata.dashboard.rendering import STATIC

TEMPLATES = Path(STATIC).parent / "templates"
OF_EVERY_PAGE = {"project_menu"}
"""The menu of projects, which each page has in its head, that of the components too."""


def test_page_of_components_shows_each_component() -> None:
    made = set(re.findall(r"macro (\w+)\(", (TEMPLATES / "components.html").read_text()))
    shown = set(re.findall(r"ui\.(\w+)\(", (TEMPLATES / "components_page.html").read_text()))
    assert len(made) > 15
    assert made - shown == OF_EVERY_PAGE
    assert all(f"ui.{name}(" in (TEMPLATES / "page.html").read_text() for name in OF_EVERY_PAGE)


def test_page_of_components_shows_each_token_of_the_style_sheet() -> None:
    style = (Path(STATIC) / "dashboard.css").read_text()
    tokens = set(re.findall(r"^\s*--([a-z-]+):", style, re.MULTILINE))
    assert set(TOKENS) == tokens
    without = [token for token in TOKENS if not re.search(rf"\.token-{token}[ ,][^}}]*var\(--", style)]
    assert without == []
