"""The page with the pictures of simulated runs, opened from a file."""

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.browsing import AXE, SCREENSHOTS

from giornata.cli.tools.simulate_page import write_pictures
from giornata.simulate.results.drawn_run import DrawnRun, RunMark

TOLD = {
    **{"scenario": "outage", "seed": 3, "nodes": 8, "jobs": 40, "succeeded": 40, "by_hand": 0, "usd_per_job": 0.26},
    **{"median_job_min": 35.5, "worst_job_min": 124.0, "makespan_h": 4.5, "billed_s": 1000, "useful_s": 800},
    **{"lost_s": 20, "idle_s": 100, "startup_s": 80},
}
MARKS = (
    RunMark(hour=0.5, kind="price", text="spot: 4 times the price"),
    RunMark(hour=1.2, kind="quarantine", text="<img src=x onerror=\"document.title='run'\"> is quarantined"),
)


def a_run(name: str, apart: float) -> DrawnRun:
    hours = [apart * number for number in range(20)]
    waiting = [max(0, 40 - 3 * number) for number in range(20)]
    minutes = [20 + apart * 30 * number for number in range(40)]
    return DrawnRun(name=name, hours=hours, queued=waiting, running=[8] * 20, job_minutes=minutes, marks=MARKS)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_two_runs_are_drawn_in_the_same_pictures(chromium: Any, tmp_path: Path, scheme: str, width: int) -> None:
    runs = [(TOLD, a_run("The ancestor", 0.25)), (TOLD, a_run("Giornata", 0.2))]
    file = write_pictures(tmp_path, about="the server is away", runs=runs)
    context = chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    page, said = context.new_page(), list[str]()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(file.as_uri())
    page.wait_for_function("document.querySelectorAll('.chart-plot canvas').length === 3")
    for legend in page.locator(".u-legend").all():
        assert "The ancestor" in legend.inner_text()
        assert "Giornata" in legend.inner_text()
    assert page.get_by_role("row", name="spot: 4 times the price").inner_text().count("The ancestor, Giornata") == 1
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"simulated-{scheme}-{width}.png", full_page=True)
    complaints = list(said)  # axe asks for style sheets by a way that a file has not
    page.evaluate(AXE.read_text())
    found = page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    title = page.title()
    context.close()
    assert ([each["id"] for each in found], over, complaints) == ([], 0, [])
    assert title == "outage · Giornata"
