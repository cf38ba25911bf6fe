"""Every page in a real browser, light, dark and on a phone: a picture of it, and what axe says."""

from collections.abc import Callable

import pytest
from tests.fixtures.browsing import SCREENSHOTS, Window
from tests.fixtures.dashboard import FRAGMENTS, Furnished, pages_of


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)])
def test_every_page_is_accessible_runs_no_text_and_fits(
    museum: Furnished, window: Callable[..., Window], scheme: str, width: int
) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    here = window(museum, scheme=scheme, width=width)
    here.go("/dashboard/sign-in")
    pages = {"sign-in": "/dashboard/sign-in"} | {
        name: path for name, path in pages_of(museum).items() if name not in FRAGMENTS
    }
    found: list[str] = []
    for name, path in pages.items():
        if name == "home":
            here.follow_link()
        here.go(path)
        here.page.screenshot(path=SCREENSHOTS / f"{name}-{scheme}-{width}.png", full_page=True)
        found += [f"{name}: {each}" for each in here.violations()]
        over = here.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        found += [f"{name}: {over} pixels wider than the screen"] if over > 0 else []
        found += [f"{name}: a text was run"] if here.page.title() == "run" else []
    assert found == []
