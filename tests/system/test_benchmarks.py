"""The benchmarks run, so that they can be believed to have run. What they measure in seconds means nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 1000.0  # the time limit of pytest is shorter, unless others share the machine


def quick(name: str, *arguments: str) -> tuple[dict[str, Any], str]:
    """The last line, and everything before it."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIORNATA_")}
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, env=clean, cwd=ROOT, check=False
    )
    assert ran.returncode == 0, ran.stderr
    *said, last = ran.stdout.splitlines()
    result: dict[str, Any] = json.loads(last)
    assert result["benchmark"] == name
    assert result["quick"] is True
    return result, "\n".join(said)


def test_claims_are_measured_on_both_databases_and_missing_peers_are_named() -> None:
    result, said = quick("claim")
    assert set(result["measured"]) == {"postgres", "sqlite"}
    for each in result["measured"].values():
        assert [cell["depth"] for cell in each["cells"]] == [100, 1_000]
        assert all(cell["claims_per_s"]["median"] > 0 < cell["beat_ms"]["p99"] for cell in each["cells"])
        assert all(growth["rows"]["attempts"][1] > growth["rows"]["attempts"][0] for growth in each["growth"])
    assert set(result["lives"]) == {"giornata, HTTP", "giornata, library"}
    assert "SKIPPED procrastinate, pgqueuer" in said


def test_a_fleet_of_simulated_agents_makes_every_call_without_an_error() -> None:
    (fleet,) = quick("fleet_load")[0]["fleets"]
    assert fleet["errors"] == {}
    assert set(fleet["calls"]) == {
        *("ask to upload", "claim", "commit", "complete", "heartbeat", "upload", "wait in vain")
    }
    assert fleet["rows"]["checkpoints"][1] > 0


def test_killed_nodes_cost_less_than_everything() -> None:
    result, _ = quick("interruption")
    assert 0.1 < result["useful_share"] < 1.5
    assert result["attempts"] >= result["jobs"]


@pytest.mark.long
def test_webhooks_are_delivered_beside_receivers_that_hang() -> None:
    result, said = quick("webhooks")
    assert result["webhooks"] == 10
    assert all(ratio > 0 for ratio in result["p95_ratios"].values())
    assert "claims, all answer to without webhooks" in said


@pytest.mark.long
def test_sample_images_drawn_by_another_node_have_the_bytes_of_the_training_process() -> None:
    result, _ = quick("validation")
    assert result["sheets"] == {"without": 0, "in process": 2, "elsewhere": 2}
    assert result["equal_sheets"] == 2
    assert result["drawn_elsewhere"] > 0


@pytest.mark.long
def test_pictures_are_measured_from_the_script_to_the_whole_fleet() -> None:
    result, said = quick("generate", "--usd-per-hour", "0.36")
    assert list(result["cells"]) == ["script", "cold", "alone", "joined", "attention", "convolutions", "fleet"]
    assert all(run["cpu_s"] > 0 < run["clock_s"] for (run,) in result["cells"].values())
    assert result["cells"]["fleet"][0]["pictures"] == 4
    for cell in result["figures"].values():
        seconds, floor_s = cell["s_per_picture"]["median"], result["floor"]["s_per_picture"]
        assert cell["pictures_per_usd"]["median"] == pytest.approx(10_000 / seconds, rel=0.02)
        assert 0 < cell["share_of_floor"]["median"] == pytest.approx(floor_s / seconds, rel=0.02)
    assert "fleet / script" in said


@pytest.mark.long
def test_every_way_to_teach_the_drawing_model_is_taken_and_marked() -> None:
    lessons = ("plain", "LoKr", "new tokens", "masked", "buckets", "from a LoRA of 75 steps", "joint, one of two")
    result, said = quick("learning", "--lessons", *lessons)
    assert [each["lesson"] for each in result["results"]] == ["base", *lessons]
    assert all(0 <= each[mark] <= 1 for each in result["results"] for mark in ("subject", "subject_iou", "old"))
    assert all(f"| {lesson} | teal-heart | 1 |" in said for lesson in lessons)


@pytest.mark.long
def test_a_trainer_of_latents_is_fed_by_a_loader_and_by_ray_and_its_steps_are_measured() -> None:
    methods = ("baseline", "+ FSDP2")
    result, said = quick("pretrain", "--ways", "loader", "online", "--methods", *methods)
    (modes,) = result["modes_found"].values()
    for way in ("loader", "online"):
        assert modes["ways"][way]["trainer_cpu_ms"]["median"] > 0 < modes["ways"][way]["others_cpu_ms"]["median"]
    (steps,) = result["steps_found"].values()
    assert set(steps["ways"]) == set(methods)
    assert all(0 < way["mfu"]["median"] < 2 for way in steps["ways"].values())
    assert result["plan"] is None
    assert "no plan: steps and encoders were not measured on an H100 or H200" in said


@pytest.mark.long
def test_ways_that_save_work_end_with_equally_many_samples() -> None:
    result, said = quick("less_work")
    ((seed, ends),) = result["ends"].items()
    assert seed == "0"
    assert {end["samples"] for end in ends.values()} == {512}
    assert len({end["loss"] for end in ends.values()}) == len(ends) == 2
    assert ends["small-first:0.75"]["cpu_s"] < ends["plain"]["cpu_s"]
    left = {row["way"]: row["flops_left"] for row in result["flops_left"] if row["architecture"] == "sd2"}
    assert 0.4 < left["small-first:0.75"] < 0.5
    assert "equal time" in said
