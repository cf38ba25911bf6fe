"""Pictures of a run."""

from pathlib import Path

import pytest
from benchmarks.simulate.comparison import played

from giornata.simulate.scenarios import SCENARIOS, sized

PICTURES = ("cost-by-machine", "fleet-and-queue", "job-life", "job-times")


def test_every_picture_is_drawn_twice(tmp_path: Path):
    plots = pytest.importorskip("benchmarks.simulate.plots")
    scenario = sized(SCENARIOS["black-hole"], jobs=12, nodes=4)
    with played(scenario, policy="ancestor", keep_beats=True) as ran:
        files = plots.draw_all(ran, tmp_path / "new")
    expected = {f"black-hole-ancestor-{name}.{kind}" for name in PICTURES for kind in ("png", "svg")}
    assert {file.name for file in files} == expected
    for file in files:
        assert (
            file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" if file.suffix == ".png" else b"<svg" in file.read_bytes()
        )


def test_job_life_plot_is_skipped_when_its_data_was_not_recorded(tmp_path: Path):
    plots = pytest.importorskip("benchmarks.simulate.plots")
    with played(sized(SCENARIOS["black-hole"], jobs=4, nodes=2), policy="ancestor") as ran:
        files = plots.draw_all(ran, tmp_path)
    assert not [file for file in files if "job-life" in file.name]
