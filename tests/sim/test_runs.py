"""Runs repeat themselves, and the ancestor's policy does what it is known for."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from benchmarks.simulate.calibration import PUBLISHED, fit, misfits
from benchmarks.simulate.comparison import gain_rows, gains_of
from tests.sim import night

from giornata.cli.tools.simulate import conclude, naming
from giornata.cli.ui.output import Output
from giornata.simulate.results.report import summary
from giornata.simulate.run import played
from giornata.simulate.scenarios import SCENARIOS, sized

ROOT = Path(__file__).parents[2]


BLACK_HOLE = ("black-hole", "--jobs", "12", "--nodes", "4", "--seed", "3")


@functools.cache
def _in_a_process(hash_seed: str, *arguments: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "giornata", "simulate", *arguments, "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert ran.stdout, ran.stderr[-2000:]
    result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return result


def test_equal_seeds_give_equal_runs_whatever_order_sets_have():
    assert _in_a_process("1", *BLACK_HOLE) == _in_a_process("2", *BLACK_HOLE)


def test_simulation_with_another_seed_has_another_makespan(run_of: Any):
    first = run_of("ancestor-1000", jobs=40, nodes=8, policy="ancestor", seed=1)
    assert first["makespan_h"] != run_of("ancestor-1000", jobs=40, nodes=8, policy="ancestor", seed=2)["makespan_h"]


def test_the_model_fits_what_was_published_of_the_ancestor(run_of: Any):
    """At full size: the ancestor's policy takes a second. What was calibrated, and how, is said in `calibration`."""
    run = run_of("ancestor-1000", jobs=1000, nodes=40, policy="ancestor")
    assert misfits(run) == {}, fit(run)


def test_a_fit_that_is_off_is_found(run_of: Any):
    """The control: another trainer does not fit."""
    run = run_of("ancestor-1000-our-trainer", jobs=1000, nodes=40, policy="ancestor")
    assert {"mean_job_min", "median_job_min"} <= misfits(run).keys() < PUBLISHED.keys()


def test_d39_d24_the_ancestor_lets_a_black_hole_go_on(run_of: Any):
    """Nobody is sent away while jobs are active: the very thing that ours must not do."""
    run = run_of("black-hole", jobs=24, nodes=8, policy="ancestor")
    assert run["attempts_on_broken"] > 3


def test_the_ancestor_needs_a_person_for_the_last_job(run_of: Any):
    assert run_of("last-job", jobs=1, nodes=1, policy="ancestor")["by_hand"] >= 1


@pytest.fixture(scope="module")
def cut_short() -> dict[str, Any]:
    """A run that ends before its jobs do."""
    short = dataclasses.replace(sized(SCENARIOS["region-loss"], jobs=6, nodes=2), latest_h=0.5)
    with played(short, seed=11) as ran:
        return summary(ran)


def test_an_invariant_that_is_broken_is_seen(cut_short: dict[str, Any]):
    """Jobs that never end are not reported as fine."""
    assert not cut_short["ok"]
    assert cut_short["by_hand"] == cut_short["jobs"] - cut_short["succeeded"] > 0


@pytest.mark.parametrize("as_json", [False, True])
def test_the_last_line_of_a_broken_run_names_seed_and_invariant(
    cut_short: dict[str, Any], capsys: pytest.CaptureFixture[str], as_json: bool
):
    with pytest.raises(typer.Exit) as left:
        conclude(Output(as_json=as_json), cut_short)
    assert left.value.exit_code == 1
    said = capsys.readouterr()
    last = (said.err if as_json else said.out).splitlines()[-1]
    assert last.startswith("broken: region-loss with --jobs 6 --nodes 2 --seed 11: every job succeeds:")
    if as_json:
        assert json.loads(said.out)["broken"] == ["every job succeeds: 6 of 6 did not"]


def test_a_run_that_stops_with_an_error_names_its_seed():
    with pytest.raises(ValueError, match="no such thing") as stopped, naming("churn with --seed 5"):
        raise ValueError("no such thing")
    assert stopped.value.__notes__ == ["stopped: churn with --seed 5: ValueError: no such thing"]


def test_gains_compare_a_run_with_the_ancestor_by_policy_and_by_trainer(run_of: Any):
    run = run_of("black-hole", jobs=12, nodes=4, seed=3)
    gained = gains_of(sized(SCENARIOS["black-hole"], jobs=12, nodes=4), run)
    policy, trainer = gained["policy"], gained["trainer"]
    assert (policy["usd_per_job"][1], policy["worst_job_min"][1]) == (run["usd_per_job"], run["worst_job_min"])
    assert policy["usd_per_job"][0] == trainer["usd_per_job"][1] < trainer["usd_per_job"][0]
    assert policy["cost_change"] == pytest.approx(run["usd_per_job"] / policy["usd_per_job"][0] - 1, abs=1e-3)
    first, second = gain_rows({**run, "gained": gained})
    assert first.startswith("policy alone") and second.startswith("trainer alone")
    assert f"→ ${run['usd_per_job']:.4f} a job ({policy['cost_change']:+.1%})" in first


def test_a_night_plays_every_scenario_and_reports_the_broken(capsys: pytest.CaptureFixture[str]):
    assert night.SIZES.keys() == SCENARIOS.keys()
    assert night.main(["--scenarios", "last-job", "--seeds", "1", "--processes", "1"]) == 0
    assert "1 runs, 0 broken" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_scenario_says_what_it_is(name: str):
    assert SCENARIOS[name].about


def test_unknown_scenarios_are_named():
    answer = _in_a_process("0", "no-such-thing")
    assert "ancestor-1000" in answer["error"]["faults"][0]["hint"]
