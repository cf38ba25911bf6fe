"""The life of a job by keyboard alone. Where Tab leads on every page is looked at in `test_looks`."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.browsing import BrowserWindow
from tests.fixtures.dashboard import PROJECT, DayClock, Furnished, claimed, picture, trained
from tests.fixtures.keyboard import tab_to
from tests.fixtures.people import PASSWORD

from giornata.control.caller import Caller
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.domain.errors import NotFound
from giornata.protocol.project.admin import Scope

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = getattr(sync_api, "expect", None)
MIA = Caller(project_id=PROJECT, scopes=Scope.MEMBER.reach, key_id="key_mia")
NAME = "gray dog"
PATIENCE_MS = 5_000, 20_000
"""For the chooser of files, each time that Space is pressed: a busy browser drops a key now and then."""


def choose_by_space(page: Any, files: Sequence[Path]) -> None:
    """Open the file field that has the focus with the space bar, and choose the files."""
    for patience_ms in PATIENCE_MS:
        with suppress(sync_api.TimeoutError):
            with page.expect_file_chooser(timeout=patience_ms) as chooser:
                page.keyboard.press("Space")
            chooser.value.set_files([*map(str, files)])
            return
    pytest.fail("the space bar opens no chooser of files")


def test_a_job_goes_from_pictures_to_its_deletion_by_keyboard_alone(
    installation: Furnished, window: Callable[..., BrowserWindow], tmp_path: Path
) -> None:
    here = window(installation)
    page = here.page
    sign_in(here, installation)
    tab_to(here, page.get_by_role("link", name="Skip to the content"))
    page.keyboard.press("Enter")
    tab_to(here, page.get_by_role("main").get_by_role("link", name="New training"), most=1)
    page.keyboard.press("Enter")
    page.wait_for_url("**/train")

    files = [tmp_path / f"dog {number}.png" for number in range(3)]
    for number, file in enumerate(files):
        file.write_bytes(picture(50 * number))
    tab_to(here, page.get_by_label("Choose pictures"))
    choose_by_space(page, files)
    expect(page.locator("#pictures li")).to_have_count(3)
    write(here, "dog 1.png", "a photo of sks dog")
    tab_to(here, page.get_by_label("Remove dog 2.png"))
    page.keyboard.press("Space")
    expect(page.locator("#pictures li")).to_have_count(2)
    write(here, "Name", NAME)
    tab_to(here, page.get_by_label("Preset"))
    page.keyboard.press("ArrowDown")
    expect(page.get_by_label("Preset")).not_to_have_value("subject")
    for label, text in (("Base model", "some/model"), ("Instance prompt", "sks dog"), ("Steps", "200")):
        write(here, label, text)
    tab_to(here, page.get_by_role("button", name="What would it cost?"))
    page.keyboard.press("Enter")
    expect(page.locator("#estimate")).to_contain_text("Place in the queue")
    tab_to(here, page.get_by_role("button", name="Begin training"))
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs/job_*")
    job_id = page.url.rpartition("/")[2].partition("?")[0]
    assert get_job(installation.served.ctx, MIA, job_id).name == NAME

    cancel_the_waiting_one(here)
    train_a_while(installation, job_id)
    follow(here, page.get_by_role("link", name=NAME))
    choose_a_checkpoint(here, job_id)
    follow(here, page.get_by_role("navigation").get_by_role("link", name="Jobs", exact=True))
    follow(here, page.get_by_role("link", name=NAME))
    tab_to(here, page.get_by_role("button", name="Cancel", exact=True))
    page.keyboard.press("Enter")
    expect(page.locator("#job-head .badge").first).to_have_text("canceled")
    delete_it(here, installation, job_id)
    sign_out(here)


def sign_in(here: BrowserWindow, installation: Furnished) -> None:
    here.page.goto(f"{here.url}/")
    for text in (installation.member.email, PASSWORD):
        here.page.keyboard.press("Tab")
        here.page.keyboard.type(text)
    here.page.keyboard.press("Enter")
    here.page.wait_for_url(f"**/projects/{PROJECT}")
    expect(here.page.get_by_role("heading", name="Today")).to_be_visible()


def write(here: BrowserWindow, label: str, text: str) -> None:
    """Go to the field with this label, and type."""
    tab_to(here, here.page.get_by_label(label, exact=True))
    here.page.keyboard.type(text)


def follow(here: BrowserWindow, link: Any) -> None:
    """Go to the link, and follow it."""
    tab_to(here, link)
    before = here.page.url
    here.page.keyboard.press("Enter")
    here.page.wait_for_url(lambda url: url != before)
    here.settle()


def cancel_the_waiting_one(here: BrowserWindow) -> None:
    """The job that waited before is chosen in the list, and canceled."""
    page = here.page
    follow(here, page.get_by_role("navigation").get_by_role("link", name="Jobs", exact=True))
    tab_to(here, page.get_by_label("Choose my grandmother's garden"))
    page.keyboard.press("Space")
    tab_to(here, page.get_by_role("button", name="Cancel the chosen"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="were canceled")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("grandmother"))).to_contain_text("canceled")


def train_a_while(installation: Furnished, job_id: str) -> None:
    """A node trains the job to its second checkpoint."""
    ctx = installation.served.ctx
    clock = DayClock(ctx.clock.now_ms())
    lease = claimed(replace(ctx, clock=clock), 3)
    assert lease.job_id == job_id
    trained(replace(ctx, clock=clock), clock, lease, 1, 150, MIA)


def choose_a_checkpoint(here: BrowserWindow, job_id: str) -> None:
    """The slider leads to an earlier checkpoint, and its link to a form that draws with it."""
    page = here.page
    tab_to(here, page.get_by_label("Samples by step"))
    expect(page.get_by_alt_text("Samples at step 140")).to_be_visible()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_alt_text("Samples at step 70")).to_be_visible()
    expect(page.get_by_alt_text("Samples at step 140")).to_be_hidden()
    tab_to(here, page.locator("#job-pictures").get_by_role("link", name="Generate with step 70"), most=1)
    page.keyboard.press("Enter")
    page.wait_for_url("**/generate?*")
    expect(page.get_by_label("LoRAs, as NAME:WEIGHT")).to_have_value(f"{job_id}@70")


def delete_it(here: BrowserWindow, installation: Furnished, job_id: str) -> None:
    """A confirmation that is refused deletes nothing; one that is given deletes the job."""
    page, asked = here.page, list[str]()
    page.on("dialog", lambda dialog: asked.append(dialog.message))
    here.confirms = False
    tab_to(here, page.get_by_role("button", name="Delete", exact=True))
    page.keyboard.press("Enter")
    assert get_job(installation.served.ctx, MIA, job_id).name == NAME
    here.confirms = True
    page.keyboard.press("Space")
    page.wait_for_url("**/jobs?said=deleted")
    assert [("cannot be brought back" in each) for each in asked] == [True, True]
    with pytest.raises(NotFound):
        get_job(installation.served.ctx, MIA, job_id)


def sign_out(here: BrowserWindow) -> None:
    """A menu closes by Escape, and its button signs out."""
    page = here.page
    tab_to(here, page.locator("summary", has_text="mia"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Sign out")).to_be_hidden()
    page.keyboard.press("Enter")
    tab_to(here, page.get_by_role("button", name="Sign out"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.goto(f"{here.url}/dashboard/projects/{PROJECT}/jobs")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
