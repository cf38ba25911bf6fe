"""Runs repeat themselves, and the ancestor's policy does what it is known for."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from giornata.simulate.calibration import PUBLISHED, fit, misfits
from giornata.simulate.report import summary
from giornata.simulate.scenarios import SCENARIOS, sized
from giornata.simulate.world import played

ROOT = Path(__file__).parents[2]


def _in_a_process(hash_seed: str, *arguments: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "giornata", "simulate", *arguments, "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert ran.stdout, ran.stderr[-2000:]
    result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return result


def test_equal_seeds_give_equal_runs_whatever_order_sets_have():
    arguments = ("black-hole", "--jobs", "12", "--nodes", "4", "--seed", "3")
    assert _in_a_process("1", *arguments) == _in_a_process("2", *arguments)


def test_another_seed_is_another_run(run_of: Any):
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


def test_an_invariant_that_is_broken_is_seen():
    """Jobs that never end are not reported as fine."""
    short = dataclasses.replace(sized(SCENARIOS["region-loss"], jobs=6, nodes=2), latest_h=0.5)
    with played(short) as ran:
        run = summary(ran)
    assert not run["ok"]
    assert run["by_hand"] == run["jobs"] - run["succeeded"] > 0


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_scenario_says_what_it_is(name: str):
    assert SCENARIOS[name].about


def test_unknown_scenarios_are_named():
    answer = _in_a_process("0", "no-such-thing")
    assert "ancestor-1000" in answer["error"]["faults"][0]["hint"]
