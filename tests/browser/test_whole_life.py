"""The whole life of a job in a browser: dropped pictures, a killed node, the LoRA, and a picture drawn with it.

Server, nodes and engines are processes of `giornata up`; the model is the tiny one that the project builds.
"""

import os
import re
import signal
from base64 import b64encode
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw
from safetensors.numpy import load_file
from tests.fixtures.browsing import SCREENSHOTS, BrowserWindow
from tests.system.conftest import Up, until

from giornata.protocol.jobs import Attempt

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = getattr(sync_api, "expect", None)
STEPS, EVERY, SIDE_PX = 150, 10, 64
PATIENCE_MS = 120_000
DROP = """(files) => {
  const dropped = new DataTransfer();
  for (const [name, content] of files) {
    const bytes = Uint8Array.from(atob(content), (each) => each.charCodeAt(0));
    dropped.items.add(new File([bytes], name, { type: "image/png" }));
  }
  const event = new DragEvent("drop", { dataTransfer: dropped, bubbles: true, cancelable: true });
  document.querySelector("#drop").dispatchEvent(event);
}"""
WATCH = """() => {
  window.kept = "this document";
  window.shown = [];
  new MutationObserver(() => {
    const text = document.querySelector(".wide-progress")?.textContent.trim();
    if (text && text !== window.shown.at(-1)) window.shown.push(text);
  }).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""


def test_pictures_become_a_lora_and_a_picture_although_a_node_is_killed(
    start_up: Callable[..., Up], window: Callable[..., BrowserWindow], tmp_path: Path
) -> None:
    # Here: a process that runs other tests need not load torch.
    from giornata.diffusion.tiny.tiny_model import build_tiny_model

    model = build_tiny_model(tmp_path / "tiny")
    up = start_up("--nodes", "2", "--lease", "2", "--price", "0.36")
    here = window(up)
    page = here.page
    here.follow_link()
    page.get_by_role("main").get_by_role("link", name="New training").click()
    page.wait_for_url("**/train")
    drop(page, circles(tmp_path / "circles"))
    expect(page.locator("#pictures li")).to_have_count(3)
    page.get_by_label("Name", exact=True).fill("green circle")
    page.get_by_label("Preset").select_option("")
    page.get_by_label("Base model").fill(str(model))
    page.get_by_label("Instance prompt").fill("a sks circle")
    page.get_by_label("Steps").fill(str(STEPS))
    page.get_by_label("Other fields of the spec, as JSON").fill(
        f'{{"resolution": {SIDE_PX}, "checkpointing_steps": {EVERY}, "learning_rate": 0.01, "seed": 7,'
        ' "sample_prompts": ["a sks circle"]}'
    )
    page.get_by_role("button", name="Show with these settings").click()
    expect(page.locator("#pictures li").first).to_contain_text(f"{SIDE_PX}×{SIDE_PX} → {SIDE_PX}×{SIDE_PX}")
    page.get_by_role("button", name="Begin training").click()
    page.wait_for_url("**/jobs/job_*")
    job_id = page.url.rpartition("/")[2].partition("?")[0]
    page.evaluate(WATCH)

    expect(page.locator("#liveness")).to_have_text("live", timeout=PATIENCE_MS)
    kill_the_node(up, job_id)
    expect(page.locator("#job-head")).to_contain_text("1 machine lost", timeout=PATIENCE_MS)
    expect(page.locator("#job-head .badge").first).to_have_text("succeeded", timeout=PATIENCE_MS)
    expect(page.locator(".wide-progress")).to_contain_text(f"{STEPS} / {STEPS}")
    assert page.evaluate("window.kept") == "this document"
    job = up.client.get_job(job_id)
    assert [each.start_step > 0 for each in job.attempts] == [False, True]
    check_shown(page.evaluate("window.shown"), [each.start_step for each in job.attempts])
    expect(page.locator("#job-pictures img").first).to_be_visible(timeout=PATIENCE_MS)

    here.settle()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / "life-trained.png", full_page=True)
    with page.expect_download() as waiting:
        page.locator("#job-files").get_by_role("link", name=re.compile(r"pytorch_lora_weights")).click()
    waiting.value.save_as(tmp_path / "lora.safetensors")
    weights = load_file(tmp_path / "lora.safetensors")
    assert any("up" in name and each.any() for name, each in weights.items())

    page.get_by_role("link", name="Generate with it").click()
    page.get_by_label("Prompt", exact=True).fill("a sks circle")
    page.get_by_label("Base model").fill(str(model))
    for label, value in (("Width", SIDE_PX), ("Height", SIDE_PX), ("Steps", 4), ("Seed", 1)):
        page.get_by_label(label, exact=True).fill(str(value))
    page.get_by_role("button", name="Draw").click()
    drawn = page.locator("#order img")
    expect(drawn).to_have_count(1, timeout=PATIENCE_MS)
    page.wait_for_function("document.querySelector('#order img').naturalWidth > 0")
    assert drawn.evaluate("(each) => [each.naturalWidth, each.naturalHeight]") == [SIDE_PX, SIDE_PX]
    page.screenshot(path=SCREENSHOTS / "life-drawn.png", full_page=True)
    (order,) = up.client.jobs(kind="generate")
    assert [each["name"] for each in up.client.get_job(order.id).spec["loras"]] == [job_id]


def circles(folder: Path) -> Sequence[Path]:
    """Three pictures of a green circle."""
    folder.mkdir()
    for number in range(3):
        image = Image.new("RGB", (SIDE_PX, SIDE_PX), "white")
        ImageDraw.Draw(image).ellipse((8 + number, 8, 50, 50), fill=(20, 160, 60))
        image.save(folder / f"{number}.png")
    return sorted(folder.iterdir())


def drop(page: Any, files: Sequence[Path]) -> None:
    """Drop the files on the page, as a person does with the mouse."""
    page.evaluate(DROP, [[file.name, b64encode(file.read_bytes()).decode()] for file in files])


def kill_the_node(up: Up, job_id: str) -> None:
    """Kill agent and engine of the node that trains the job, once a checkpoint is safe."""

    def committed() -> Attempt | None:
        job = up.client.get_job(job_id)
        assert job.error is None, job.error
        last = job.attempts[-1] if job.attempts else None
        return last if last is not None and EVERY <= last.committed_step < STEPS - EVERY else None

    attempt = until(committed, f"a checkpoint\n{up.said()}")
    node = next(each for each in up.client.nodes() if each.id == attempt.node_id)
    for pid in (node.pid, node.engine_pid):
        assert pid is not None
        os.kill(pid, signal.SIGKILL)


def check_shown(shown: Sequence[str], starts: Sequence[int]) -> None:
    """What the page showed meanwhile: steps of this job, which fall only to where the second attempt began."""
    steps = []
    for text in shown:
        found = re.search(rf"(\d+) / {STEPS}\b", text)
        assert found is not None, text
        steps.append(int(found[1]))
    falls = [(before, after) for before, after in pairwise(steps) if after < before]
    assert all(after >= starts[-1] for _, after in falls), (steps, starts)
    assert len(falls) <= 1, steps
    assert len(set(steps)) > 2, steps
