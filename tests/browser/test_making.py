"""What people make in a browser: a training from dropped pictures, a comparison, and pictures."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw
from tests.fixtures.browsing import BrowserWindow
from tests.fixtures.dashboard import PROJECT, Furnished
from tests.fixtures.picture_rig import PictureRig
from tests.fixtures.store_rig import StoreRig

from giornata.control.caller import Caller
from giornata.control.jobs.reading.read_jobs import get_job, list_jobs
from giornata.control.pictures.settle_order import settle_orders
from giornata.control.ports.blobs import SignedRequest
from giornata.protocol.project.admin import Scope

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = getattr(sync_api, "expect", None)
HERE = f"/dashboard/projects/{PROJECT}"
ANN = Caller(project_id=PROJECT, scopes=Scope.ADMIN.reach, key_id="key_ann")


class DistantBlobs:
    """A storage whose signed URLs lead to another origin, which no page may ask."""

    def __init__(self, blobs: Any) -> None:
        self._blobs = blobs
        self.signed: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)

    def sign_put(self, key: str, **how: Any) -> SignedRequest:
        self.signed.append(key)
        return replace(self._blobs.sign_put(key, **how), url=f"https://storage.example/bucket/{key}")


def drawn(width: int, height: int, shade: int) -> bytes:
    image = Image.new("RGB", (width, height), (200, 180 - shade, 140))
    ImageDraw.Draw(image).ellipse((width // 5, height // 5, width * 4 // 5, height * 4 // 5), fill=(120, shade, 60))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def test_pictures_become_a_job_and_survive_a_reload_on_the_way(
    installation: Furnished, window: Callable[..., BrowserWindow], tmp_path: Path
) -> None:
    files = [tmp_path / f"dog {number}.png" for number in range(5)]
    for number, file in enumerate(files):
        file.write_bytes(drawn(640, 480 + 40 * number, 30 * number))
    (tmp_path / "notes.txt").write_text("no picture")
    here = window(installation)
    here.follow_link()
    page = here.page
    here.go(f"{HERE}/train")
    page.set_input_files("#files", [*map(str, files), str(tmp_path / "notes.txt")])
    expect(page.locator("#pictures li")).to_have_count(5)
    expect(page.locator("#upload-said")).to_have_text("5 of 5 uploaded")
    page.get_by_label("dog 0.png", exact=True).fill("a photo of sks dog")
    page.get_by_label("Base model").fill("some/model")
    page.get_by_label("Instance prompt").fill("sks dog")
    page.get_by_label("Steps").fill("12")
    page.reload()
    expect(page.locator("#pictures li")).to_have_count(5)
    expect(page.get_by_label("dog 0.png", exact=True)).to_have_value("a photo of sks dog")
    expect(page.get_by_label("Steps")).to_have_value("12")
    page.get_by_label("Find in captions").fill("dog")
    page.get_by_label("Put instead").fill("cat")
    page.get_by_role("button", name="Replace in all").click()
    expect(page.get_by_label("dog 0.png", exact=True)).to_have_value("a photo of sks cat")
    page.get_by_role("button", name="What would it cost?").click()
    expect(page.locator("#estimate")).to_contain_text("Place in the queue")
    page.get_by_role("button", name="Begin training").click()
    page.wait_for_url("**/jobs/job_*")
    job = get_job(installation.served.ctx, ANN, page.url.rpartition("/")[2].partition("?")[0])
    assert (job.total_steps, job.spec["instance_prompt"]) == (12, "sks dog")
    here.go(f"{HERE}/train")
    expect(page.locator("#pictures li")).to_have_count(0)


def test_pictures_of_a_job_that_was_refused_or_never_arrived_wait_in_the_next_form(
    installation: Furnished, window: Callable[..., BrowserWindow], tmp_path: Path
) -> None:
    files = [tmp_path / f"dog {number}.png" for number in range(2)]
    for number, file in enumerate(files):
        file.write_bytes(drawn(640, 480, 30 * number))
    here = window(installation)
    here.follow_link()
    page = here.page
    begin = page.get_by_role("button", name="Begin training")
    here.go(f"{HERE}/train")
    page.set_input_files("#files", [*map(str, files)])
    expect(page.locator("#pictures li")).to_have_count(2)
    page.get_by_label("dog 0.png", exact=True).fill("a photo of sks dog")
    page.get_by_label("Steps").fill("many")
    begin.click()
    expect(page.locator("#steps-fault")).to_be_visible()
    here.forget_refusals()
    for _ in range(2):  # once after the refusal, once after the lost connection
        here.go(f"{HERE}/jobs")
        here.go(f"{HERE}/train")
        expect(page.locator("#pictures li")).to_have_count(2)
        expect(page.get_by_label("dog 0.png", exact=True)).to_have_value("a photo of sks dog")
        page.route("**/train", lambda route: route.abort())
        begin.click()
        page.wait_for_url("chrome-error:**")
        page.unroute("**/train")
    here.complaints.clear()


def test_pictures_that_are_dropped_on_the_first_page_wait_in_a_new_training(
    installation: Furnished, window: Callable[..., BrowserWindow], tmp_path: Path
) -> None:
    here = window(installation)
    here.follow_link()
    page = here.page
    here.go(HERE)
    (tmp_path / "notes.txt").write_text("no picture")
    page.set_input_files("#files", str(tmp_path / "notes.txt"))
    expect(page.locator("#upload-said")).to_have_text("There is no picture among these files.")
    given = [{"name": f"dog {n}.png", "content": list(drawn(320, 320, 40 * n))} for n in range(2)]
    dropped = page.evaluate_handle(
        """(given) => {
          const found = new DataTransfer();
          for (const { name, content } of given) {
            found.items.add(new File([new Uint8Array(content)], name, { type: "image/png" }));
          }
          return found;
        }""",
        given,
    )
    page.dispatch_event("#drop", "drop", {"dataTransfer": dropped})
    page.wait_for_url("**/train")
    expect(page.locator("#pictures li")).to_have_count(2)
    expect(page.get_by_label("dog 0.png", exact=True)).to_have_value("")
    page.get_by_label("dog 0.png", exact=True).fill("a photo of sks dog")
    here.go(HERE)
    (tmp_path / "dog 9.png").write_bytes(drawn(320, 320, 90))
    page.set_input_files("#files", str(tmp_path / "dog 9.png"))
    page.wait_for_url("**/train")
    expect(page.locator("#pictures li")).to_have_count(3)
    expect(page.get_by_label("dog 0.png", exact=True)).to_have_value("a photo of sks dog")


def test_pictures_reach_a_storage_of_another_origin_and_a_reload_in_between_loses_none(
    installation: Furnished, window: Callable[..., BrowserWindow], tmp_path: Path
) -> None:
    distant = DistantBlobs(installation.served.ctx.blobs)
    installation.served.app.state.context = replace(installation.served.app.state.context, blobs=distant)
    files = [tmp_path / f"cat {number}.png" for number in range(4)]
    for number, file in enumerate(files):
        file.write_bytes(drawn(640, 480, 40 * number))
    here = window(installation)
    here.follow_link()
    page = here.page
    here.go(f"{HERE}/train")
    stuck: list[object] = []

    def hold_the_last(route: Any) -> None:
        if len(stuck) or len(distant.signed) < 4:
            route.continue_()
        else:
            stuck.append(route)  # this one never ends: the page is loaded again before

    page.route("**/uploads/*/complete", hold_the_last)
    page.set_input_files("#files", [*map(str, files)])
    expect(page.locator("#upload-said")).to_have_text("3 of 4 uploaded")
    page.reload()
    expect(page.locator("#pictures li")).to_have_count(3)
    page.unroute("**/uploads/*/complete")
    page.set_input_files("#files", [*map(str, files)])
    expect(page.locator("#pictures li")).to_have_count(4)
    expect(page.locator("#upload-said")).to_have_text("4 of 4 uploaded")
    assert len(distant.signed) >= 4


def test_jobs_are_chosen_and_compared_by_keyboard_alone(
    installation: Furnished, window: Callable[..., BrowserWindow]
) -> None:
    here = window(installation)
    here.follow_link()
    here.go(f"{HERE}/compare")
    for name in ("portrait of a red fox", "watercolor style"):
        here.page.get_by_label(f"Choose {name}").focus()
        here.page.keyboard.press("Space")
    here.page.get_by_role("button", name="Compare the chosen").focus()
    here.page.keyboard.press("Enter")
    expect(here.page.locator(".chart-plot canvas")).to_be_visible()
    expect(here.page.locator(".compared img")).to_have_count(2)


def test_ordered_pictures_appear_while_they_are_drawn_and_give_their_settings(
    installation: Furnished, window: Callable[..., BrowserWindow]
) -> None:
    here = window(installation)
    here.follow_link()
    page, ctx = here.page, installation.served.ctx
    here.go(f"{HERE}/generate")
    page.get_by_label("Prompt", exact=True).fill("a fox in a garden")
    page.get_by_label("Base model").fill("some/model")
    page.get_by_label("Pictures of each prompt").fill("2")
    page.get_by_label("Width").fill("512")
    page.get_by_role("button", name="Draw").click()
    expect(page.locator("#order .order")).to_be_visible()
    rig = PictureRig(StoreRig(ctx, ctx.store, ctx.clock))  # type: ignore[arg-type]
    lease = rig.lease()
    done = [rig.upload(lease, each, drawn(64, 64, 90 * each.number)) for each in lease.pictures]
    rig.report(lease, done, complete=True)
    settle_orders(ctx)
    expect(page.locator("#order img")).to_have_count(2)
    page.locator("#order").get_by_role("link", name="Use these settings of picture 1").click()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("a fox in a garden")
    expect(page.get_by_label("Width")).to_have_value("512")
    assert len(list_jobs(ctx, ANN, states=(), labels={}, kind="generate", cursor=None, limit=9).items) == 1
