"""The curves and marks of a run, and the page that shows them."""

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

from benchmarks.simulate.comparison import played, summary

from giornata.cli.tools.simulate_page import read_run, save_run
from giornata.simulate.results.drawn_run import MOST_POINTS, drawn, thinned
from giornata.simulate.scenarios import SCENARIOS, sized


class RunsOfPage(HTMLParser):
    """Finds what the page's script reads."""

    runs: list[dict[str, object]]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del tag
        if found := dict(attrs).get("data-runs"):
            self.runs = json.loads(found)


def test_long_curves_are_thinned_and_keep_both_ends() -> None:
    assert thinned(range(5)) == range(5)
    found = thinned(range(10_000))
    assert (len(found), found[0], found[-1]) == (MOST_POINTS, 0, 9_999)
    assert list(found) == sorted(set(found))


def test_prices_and_troubles_of_a_scenario_are_marks() -> None:
    with played(sized(SCENARIOS["price-spike"], jobs=4, nodes=2)) as ran:
        run = drawn(ran, name="ours")
    assert [(mark.hour, mark.text) for mark in run.marks if mark.kind == "price"] == [
        (0.5, "spot: 4 times the price"),
        (3.5, "spot: the old price again"),
    ]
    assert len(run.hours) == len(run.queued) == len(run.running) > 3
    assert (run.queued[-1], max(run.running) > 0, len(run.job_minutes)) == (0, True, 4)


def test_a_faulty_machine_is_marked_when_it_is_replaced() -> None:
    with played(sized(SCENARIOS["black-hole"], jobs=12, nodes=4)) as ran:
        run = drawn(ran, name="ours")
    (mark,) = [mark for mark in run.marks if "machine-00000" in mark.text]
    assert mark.kind in {"replaced", "quarantine"}
    assert 0 < mark.hour < run.hours[-1]


def test_a_run_is_opened_in_the_browser_as_a_page_that_needs_no_server(tmp_path: Path) -> None:
    said = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {said}\n')
    browser.chmod(0o755)
    command = [sys.executable, "-m", "giornata", "simulate", "black-hole", "--jobs", "4", "--nodes", "2", "--open"]
    environment = os.environ | {"BROWSER": f"{browser} %s", "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = Path(said.read_text().strip().removeprefix("file://"))
    parser = RunsOfPage()
    parser.feed(page.read_text())
    (run,) = parser.runs
    assert run["name"] == "Giornata"
    assert len(run["job_minutes"]) == 4  # type: ignore[arg-type]
    for name in ("dashboard.css", "simulation.js", "vendor/uPlot.iife.min.js"):
        assert f"static/{name}" in page.read_text()
        assert (page.parent / "static" / name).is_file()


def test_ancestor_is_drawn_beside_ours_and_another_run_is_refused(tmp_path: Path) -> None:
    scenario = sized(SCENARIOS["black-hole"], jobs=4, nodes=2)
    with played(scenario, policy="ancestor") as ran:
        save_run(tmp_path / "ancestor.json", told=summary(ran), run=drawn(ran, name="The ancestor"))
    (tmp_path / "nothing.json").write_text("{}")
    environment = os.environ | {"BROWSER": "true %s", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "giornata", "simulate", "black-hole", "--nodes", "2", "--open"]

    def compare(file: str, jobs: int) -> subprocess.CompletedProcess[str]:
        asked = [*command, "--jobs", str(jobs), "--compare", str(tmp_path / file)]
        return subprocess.run(asked, capture_output=True, text=True, env=environment, check=False)

    assert compare("ancestor.json", 4).returncode == 0
    (page,) = tmp_path.glob("giornata-black-hole-*/index.html")
    parser = RunsOfPage()
    parser.feed(page.read_text())
    assert [run["name"] for run in parser.runs] == ["The ancestor", "Giornata"]
    refused = compare("ancestor.json", 5)
    assert (refused.returncode, "jobs 4, not 5" in refused.stderr) == (2, True), refused.stderr
    for file in ("nothing.json", "missing.json"):
        refused = compare(file, 4)
        assert (refused.returncode, file in refused.stderr) == (2, True), refused.stderr


def test_saved_run_is_read_as_it_was(tmp_path: Path) -> None:
    with played(sized(SCENARIOS["black-hole"], jobs=4, nodes=2)) as ran:
        told, run = summary(ran), drawn(ran, name="ours")
    save_run(tmp_path / "deeper" / "run.json", told=told, run=run)
    read_told, read = read_run(tmp_path / "deeper" / "run.json", alike={"jobs": 4})
    assert (read.as_json(), read_told["usd_per_job"]) == (json.loads(json.dumps(run.as_json())), told["usd_per_job"])
