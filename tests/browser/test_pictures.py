"""Pictures in a browser: a grid that is ordered and mended, the gallery, and what is dropped from a folder."""

import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from tests.fixtures.browsing import BrowserWindow
from tests.fixtures.dashboard import PROJECT, DayClock, Furnished, picture
from tests.fixtures.picture_rig import PictureRig
from tests.fixtures.store_rig import StoreRig

from giornata.control.context import Context
from giornata.control.memory.process_cache import ProcessCache
from giornata.control.pictures.settle_order import settle_orders
from giornata.domain.jobs.reasons import Reason

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = getattr(sync_api, "expect", None)
HERE = f"/dashboard/projects/{PROJECT}"
DAY_MS = 86_400_000
A1111 = "a red fox\nNegative prompt: blurry\nSteps: 20, Sampler: Euler, Seed: 99, Size: 640x512, Model: some"


def test_a_grid_is_ordered_drawn_and_a_cell_that_failed_is_drawn_again(
    museum: Furnished, window: Callable[..., BrowserWindow]
) -> None:
    here, ctx = window(museum), museum.served.ctx
    page = here.page
    here.sign_in(museum.member)
    here.go(f"{HERE}/generate")
    page.get_by_label("Prompt", exact=True).fill("a {who} in the snow")
    for label, text in (("Base model", "some/model"), ("Width", "512"), ("Height", "512"), ("Seed", "5")):
        page.get_by_label(label, exact=True).fill(text)
    page.get_by_text("Grid: a picture of each combination").click()
    for row, (name, values) in enumerate((("who", "fox, hare"), ("guidance_scale", "4, 7.5, 9")), start=1):
        page.get_by_label(f"Axis {row}", exact=True).fill(name)
        page.get_by_label(f"Values of axis {row}", exact=True).fill(values)
    page.get_by_role("button", name="Draw", exact=True).click()
    sheet = page.locator("#order .grid-sheet")
    expect(sheet.locator("thead th")).to_have_text(
        ["who", *(f"guidance_scale: {each}" for each in ("4", "7.5", "9"))]
    )
    expect(sheet.locator("tbody th")).to_have_text(["fox", "hare"])
    expect(sheet.locator(".tile")).to_have_count(6)
    page.evaluate("window.kept = 'this document'")
    draw(ctx, failing=4)
    expect(sheet.locator("img")).to_have_count(5)
    assert page.evaluate("window.kept") == "this document"
    cell = sheet.locator("tbody tr").nth(1).locator("td").nth(1)
    expect(cell).to_contain_text("failed")
    cell.get_by_role("button", name="Draw again").click()
    expect(page.get_by_role("status").filter(has_text="The cells are drawn again")).to_be_visible()
    expect(cell.locator(".tile")).to_have_text("queued")
    draw(ctx)
    expect(sheet.locator("img")).to_have_count(6)
    expect(page.get_by_role("button", name="Draw all again that failed")).to_have_count(0)
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Cells as CSV").click()
    assert Path(waiting.value.path()).read_text().count("succeeded") == 6
    cell.get_by_role("link", name="Use").click()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("a hare in the snow")
    expect(page.get_by_label("Guidance scale")).to_have_value("7.5")


def test_pictures_are_found_marked_downloaded_used_and_deleted(
    museum: Furnished, window: Callable[..., BrowserWindow], tmp_path: Path
) -> None:
    ctx = museum.served.ctx
    days_ago = replace(ctx, clock=DayClock(ctx.clock.now_ms() - 3 * DAY_MS))
    ordered(days_ago, "a lighthouse at dawn", model="base-old")
    ordered(ctx, "a lighthouse at night", model="base-new", lora="moonlight")
    here = window(museum)
    page = here.page
    here.sign_in(museum.member)
    here.go(f"{HERE}/generate")
    shown = page.locator("#gallery .found")

    def find(*fields: tuple[str, str]) -> None:
        for label in ("Words of the prompt", "Model of the picture", "LoRA", "Tags, with commas", "From", "To"):
            page.locator("#gallery-search").get_by_label(label, exact=True).fill(dict(fields).get(label, ""))
        with page.expect_response(re.compile("/gallery[?]")):
            page.get_by_role("button", name="Find").click()
        here.settle()

    yesterday = page.evaluate(f"new Date(Date.now() - {DAY_MS}).toISOString().slice(0, 10)")
    for fields, found in (
        ([("Words of the prompt", "lighthouse")], 4),
        ([("Words of the prompt", "lighthouse dawn")], 2),
        ([("Model of the picture", "base-new")], 2),
        ([("LoRA", "moonlight")], 2),
        ([("Words of the prompt", "lighthouse"), ("To", yesterday)], 2),
        ([("Words of the prompt", "lighthouse"), ("From", yesterday)], 2),
        ([("Words of the prompt", "nothing like it")], 0),
    ):
        find(*fields)
        expect(shown, str(fields)).to_have_count(found)
    expect(page.locator("#gallery")).to_contain_text("No picture is like this.")

    find(("Words of the prompt", "lighthouse night"))
    shown.first.get_by_role("checkbox").check()
    page.get_by_role("button", name="Star", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="are marked")).to_be_visible()
    expect(shown.get_by_role("img", name="It has a star")).to_have_count(1)
    expect(shown).to_have_count(2)  # the search is still that of before
    page.get_by_label("Choose all").check()
    page.locator("#gallery").get_by_label("Tags", exact=True).fill("print")
    page.get_by_role("button", name="Give the tags").click()
    expect(shown.locator(".badge", has_text="print")).to_have_count(2)
    here.go(f"{HERE}/generate")
    find(("Tags, with commas", "print"))
    expect(shown).to_have_count(2)

    page.get_by_label("Choose all").check()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download as ZIP").click()
    with zipfile.ZipFile(waiting.value.path()) as archive:
        assert sorted(archive.read(each) for each in archive.namelist()) == sorted(
            drawn("a lighthouse at night", number) for number in range(2)
        )
    shown.first.get_by_role("link", name="Use these settings").click()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("a lighthouse at night")
    expect(page.get_by_label("LoRAs, as NAME:WEIGHT")).to_have_value("moonlight:0.5")

    find(("Words of the prompt", "lighthouse"))
    shown.first.get_by_role("checkbox").check()
    here.confirms = False
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(shown).to_have_count(4)
    here.confirms = True
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="are deleted")).to_be_visible()
    expect(shown).to_have_count(3)


def test_a_dropped_file_gives_its_settings_and_a_dropped_folder_its_pictures(
    museum: Furnished, window: Callable[..., BrowserWindow], tmp_path: Path
) -> None:
    here = window(museum)
    page = here.page
    here.sign_in(museum.member)
    here.go(f"{HERE}/generate")
    told, silent, folder = tmp_path / "told.png", tmp_path / "silent.png", tmp_path / "dogs"
    info = PngInfo()
    info.add_text("parameters", A1111)
    Image.new("RGB", (8, 8)).save(told, pnginfo=info)
    Image.new("RGB", (8, 8)).save(silent)
    drop(here, told)
    page.wait_for_url("**/generate?file=*")
    for label, value in (("Prompt", "a red fox"), ("Width", "640"), ("Steps", "20"), ("Seed", "99")):
        expect(page.get_by_label(label, exact=True)).to_have_value(value)
    page.set_input_files("#files", str(silent))
    expect(page.get_by_role("alert")).to_contain_text("says nothing about how it was made")
    here.forget_refusals()

    (folder / "more").mkdir(parents=True)
    for number, name in enumerate(("one.png", "two.png", "more/three.png")):
        (folder / name).write_bytes(picture(300 + number))
    (folder / "notes.txt").write_text("no picture")
    here.go(f"{HERE}/train")
    drop(here, folder)
    expect(page.locator("#upload-said")).to_have_text("3 of 3 uploaded")
    expect(page.locator("#pictures li")).to_have_count(3)
    (folder / "four.png").write_bytes(picture(304))
    page.set_input_files("#folder", str(folder))
    expect(page.locator("#upload-said")).to_have_text("4 of 4 uploaded")
    expect(page.locator("#pictures li")).to_have_count(4)  # a picture that is there already is not there twice


def drop(here: BrowserWindow, path: Path) -> None:
    """Drop a file or a folder of the disk, as the system tells the browser of it."""
    here.page.locator("#drop").scroll_into_view_if_needed()
    box = here.page.locator("#drop").bounding_box()
    session = here.context.new_cdp_session(here.page)
    data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
    at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] - 8, "data": data}
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, **at})
    session.detach()


def rig_of(ctx: Context) -> PictureRig:
    ctx = replace(ctx, memory=ProcessCache())
    return PictureRig(StoreRig(ctx, ctx.store, ctx.clock))  # type: ignore[arg-type]


def draw(ctx: Context, *, failing: int | None = None) -> None:
    """A node draws what is ordered; the picture of this number fails."""
    rig = rig_of(ctx)
    lease = rig.lease(node=21, request_id=ctx.names.new("request"))
    bad = [(each, Reason.BAD_SPEC) for each in lease.pictures if each.number == failing]
    good = [each for each in lease.pictures if each.number != failing]
    rig.report(lease, [rig.upload(lease, each, picture(90 * each.number)) for each in good], bad, complete=True)
    settle_orders(ctx)


def drawn(prompt: str, number: int) -> bytes:
    return picture(sum(map(ord, prompt)) + number)


def ordered(ctx: Context, prompt: str, *, model: str, lora: str | None = None) -> None:
    """An order of two pictures, which are drawn."""
    rig = rig_of(ctx)
    spec: dict[str, Any] = {"model": {"name": model}, "prompts": [prompt], "num_images_per_prompt": 2, "seed": 3}
    spec |= {"width": 512, "height": 512, "num_inference_steps": 8}
    spec |= {"loras": [{"name": lora, "weight": 0.5}]} if lora else {}
    rig.order(spec=spec, project_id=PROJECT, name=prompt, total_steps=2)
    lease = rig.lease(node=22, request_id=ctx.names.new("request"))
    done = [rig.upload(lease, each, drawn(prompt, each.number)) for each in lease.pictures]
    rig.report(lease, done, complete=True)
    settle_orders(ctx)
