"""Debian's Chromium, driven by Playwright, in front of a furnished installation.

Where the browser cannot be had these tests are skipped; `.ci/run` installs it.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fixtures.browsing import ARGUMENTS, CHROMIUM, BrowserWindow
from tests.fixtures.dashboard import Furnished, furnished
from tests.system.conftest import Up, start_up, until

from giornata.dashboard.sign_in_pages import link_url

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
__all__ = ["start_up"]  # a fixture
LINK = re.compile(r"http://\S+link=\S+", re.ASCII)
sync_api.expect.set_options(timeout=20_000)


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}; on Debian: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Furnished]:
    """An installation for a test that changes it."""
    with furnished(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def museum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Furnished]:
    """An installation for tests that only look."""
    with furnished(tmp_path_factory.mktemp("museum")) as made:
        yield made


@pytest.fixture
def window(chromium: object) -> Iterator[Callable[..., BrowserWindow]]:
    """Open windows, each with its own cookies. At the end none has said an error or asked another origin."""
    opened: list[BrowserWindow] = []

    def open_one(installation: Furnished | Up, *, scheme: str = "light", width: int = 1280) -> BrowserWindow:
        context = chromium.new_context(  # type: ignore[attr-defined]
            color_scheme=scheme, viewport={"width": width, "height": 900}, reduced_motion="reduce"
        )
        context.set_default_timeout(20_000)
        url = installation.url if isinstance(installation, Up) else installation.served.url
        opened.append(BrowserWindow(url=url, make_link=lambda: _link(installation), context=context))
        return opened[-1]

    yield open_one
    complaints = [each for one in opened for each in one.complaints]
    for one in opened:
        one.context.close()
    assert complaints == []


def _link(installation: Furnished | Up) -> str:
    """A one-time link that signs in: a fresh one, or the one that `giornata up` printed."""
    if isinstance(installation, Up):
        return until(lambda: LINK.search(installation.said()), f"a link in {installation.log}").group()
    return link_url(installation.served.url, installation.links.make(installation.served.ctx))
