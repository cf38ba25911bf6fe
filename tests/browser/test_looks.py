"""Every page in a real browser, light, dark and on a phone: a picture of it, what axe says, and where Tab leads."""

from collections.abc import Callable, Iterator

import pytest
from tests.fixtures.browsing import SCREENSHOTS, BrowserWindow
from tests.fixtures.dashboard import FRAGMENTS, Furnished, pages_of
from tests.fixtures.keyboard import tab_faults
from tests.fixtures.page_states import Exhibits, exhibited, states_of

KEYS_ON_A_PHONE = frozenset({"home", "generate-grid", "train-faults"})
"""Pages on which the order of Tab is looked at in a narrow window, too."""

KEYS_BACKWARD = frozenset({"home", "generate", "train-faults", "jobs", "job", "retention"})
"""Pages on which Shift+Tab is pressed, too: those with most kinds of controls."""


@pytest.fixture(scope="module")
def exhibits(museum: Furnished) -> Exhibits:
    return exhibited(museum)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_every_page_is_accessible_runs_no_text_and_fits(
    museum: Furnished, exhibits: Exhibits, window: Callable[..., BrowserWindow], scheme: str, width: int
) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    here = window(museum, scheme=scheme, width=width)
    found: list[str] = []
    for name in reached(here, museum, exhibits):
        here.page.screenshot(path=SCREENSHOTS / f"{name}-{scheme}-{width}.png", full_page=True)
        over = here.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        seen = here.violations()
        seen += [f"{over} pixels wider than the screen"] if over > 0 else []
        seen += ["a text was run"] if here.page.title() == "run" else []
        if (scheme, width) == ("light", 1280) or (width < 1280 and name in KEYS_ON_A_PHONE):
            seen += tab_faults(here.page)
        if (scheme, width) == ("light", 1280) and name in KEYS_BACKWARD:
            seen += tab_faults(here.page, backward=True)
        found += [f"{name}: {each}" for each in seen]
    assert found == []


def reached(here: BrowserWindow, museum: Furnished, exhibits: Exhibits) -> Iterator[str]:
    """Open each page, and then bring about each state, and say its name."""
    here.go("/dashboard/sign-in")
    yield "sign-in"
    here.page.get_by_role("button", name="Sign in").click()
    here.page.locator(".fault").first.wait_for()
    here.forget_refusals()
    yield "sign-in-faults"
    here.follow_link()
    for name, path in pages_of(museum).items():
        if name not in FRAGMENTS:
            here.go(path)
            yield name
    for name, reach in states_of(museum, exhibits).items():
        reach(here)
        yield name
