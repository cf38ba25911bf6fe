"""What the benchmarks make of their measurements."""

import pytest
from benchmarks.rig.curves import at, compared
from benchmarks.rig.pretraining_feed import Laps
from benchmarks.rig.pretraining_plan import gpu_of, planned
from benchmarks.rig.pretraining_table import mfu, modes_summary, modes_table, plan_table, steps_summary, steps_table
from benchmarks.rig.training_runs import MeasuredTraining
from benchmarks.rig.training_table import facts_of, ratios, table


def point(samples: float, cpu_s: float, loss: float) -> dict:
    return {"samples": samples, "cpu_s": cpu_s, "loss": loss, "levels": {"0": 2 * loss, "9": loss / 2}}


PLAIN = [point(100, 10, 0.8), point(200, 20, 0.4)]


def test_between_two_validations_the_loss_is_on_the_line_between_them() -> None:
    found = at(PLAIN, "samples", 150)
    levels = pytest.approx({"0": 1.2, "9": 0.3})
    assert found == {"samples": 150, "cpu_s": 15, "loss": pytest.approx(0.6), "levels": levels}
    assert at(PLAIN, "cpu_s", 10) == PLAIN[0]
    assert at(PLAIN, "cpu_s", 20) == PLAIN[1]


@pytest.mark.parametrize("cpu_s", [9, 21])
def test_outside_of_a_curve_nothing_is_made_up(cpu_s: float) -> None:
    with pytest.raises(ValueError, match="has cpu_s from 10 to 20"):
        at(PLAIN, "cpu_s", cpu_s)


def test_a_quicker_run_is_held_against_what_the_other_had_when_it_ended() -> None:
    quicker = [point(100, 5, 0.8), point(200, 15, 0.5)]
    found = compared(PLAIN, quicker)
    assert found["equal_samples"]["loss"] == pytest.approx(0.5 / 0.4)
    assert found["equal_time"]["loss"] == pytest.approx(0.5 / 0.6)
    assert found["equal_time"]["cpu_s"] == 15
    assert found["equal_time"]["levels"]["9"] == pytest.approx(0.25 / 0.3)
    assert found["cpu_s_per_sample"] == pytest.approx(0.75)


def test_a_slower_run_is_held_against_the_plain_one_s_end() -> None:
    slower = [point(100, 15, 0.8), point(200, 30, 0.2)]
    found = compared(PLAIN, slower)
    assert found["equal_time"]["cpu_s"] == 20
    assert found["equal_time"]["loss"] == pytest.approx(0.6 / 0.4)
    assert found["equal_samples"]["loss"] == pytest.approx(0.2 / 0.4)


def way(images_per_s: float, trainer_cpu_ms: float) -> dict:
    return {"images_per_s": images_per_s, "trainer_cpu_ms": trainer_cpu_ms, "others_cpu_ms": 1.0, "wait_share": 0.1}


def test_ways_are_compared_round_by_round_and_more_is_better() -> None:
    # The second round was twice as slow for both: the ratio is that of each round, and not of the medians.
    runs = {"loader": [way(100, 12), way(50, 24)], "offline": [way(150, 8), way(75, 16)]}
    told = modes_summary(runs, over="loader")
    assert told["ways"]["offline"]["cpu_ratio"] == {"median": 1.5, "min": 1.5, "max": 1.5}
    assert told["ways"]["offline"]["wall_ratio"] == {"median": 1.5, "min": 1.5, "max": 1.5}
    assert told["ways"]["loader"]["cpu_ratio"]["median"] == 1
    table = modes_table(64, told | {"flops": {"training": 100, "vae": 50, "text": 9}})
    assert "encoding is 59% of the FLOPs of training" in table
    assert [line.split()[0] for line in table.splitlines()[2:]] == ["loader", "offline"]


def step(wall_s: float, *, peak: float | None = None) -> dict:
    return {
        "wall_s": [9.0, wall_s, wall_s],
        "cpu_s": [wall_s / 2] * 3,
        "warm_cpu_s": [7.0],
        "flops_per_picture": 10,
        "peak_flops_per_s": peak,
        "flops_per_cpu_s": 400,
        "peak_bytes": None,
        "device": "some",
    }


def test_mfu_is_by_the_clock_against_a_gpu_s_peak_and_by_cpu_seconds_on_a_cpu() -> None:
    # 4 pictures of 10 FLOP in half a second, of which the CPU worked a quarter.
    assert mfu(step(0.5, peak=160), 4) == 0.5
    assert mfu(step(0.5), 4) == 0.4


def test_methods_are_compared_with_the_baseline_of_their_round() -> None:
    runs = {"baseline": [step(0.5), step(1.0)], "+ FSDP2": [step(0.25), step(0.5)]}
    told = steps_summary(runs, rows=4, over="baseline")
    assert told["ways"]["baseline"]["images_per_s"] == {"median": 6.0, "min": 4.0, "max": 8.0}
    assert told["ways"]["+ FSDP2"]["wall_ratio"] == {"median": 2, "min": 2, "max": 2}
    assert told["ways"]["+ FSDP2"]["cpu_ratio"] == {"median": 2, "min": 2, "max": 2}
    assert told["ways"]["+ FSDP2"]["cpu_ms"]["median"] == pytest.approx(46.9)
    assert "+ FSDP2" in steps_table(64, told)


def test_a_card_that_was_not_measured_is_planned_at_the_mean_mfu_of_the_one_that_was() -> None:
    # 539.3 and 2408.7 GFLOP a picture at 989 TFLOP/s: 60 % and 50 %.
    rates = {256: 0.6 * 989e3 / 539.3, 512: 0.5 * 989e3 / 2408.7}
    plan = planned("H200", rates, {256: 1000.0, 512: 300.0})
    trainers = {each["name"].split()[0]: each for each in plan}
    assert set(trainers) == {"4xp5.48xlarge", "4xp5en.48xlarge"}
    assert trainers["4xp5en.48xlarge"]["mfu"] == [0.6, 0.5]
    assert trainers["4xp5.48xlarge"]["mfu"] == [0.55, 0.55]
    # By hand: 1,126.4 million at 32 × 1,100.3 images/s and 1,740.8 at 32 × 205.3 take 82.5 h, of 4 × 63.296 USD.
    hours = sum(samples / (32 * rates[side]) / 3600 for samples, side in ((1126.4e6, 256), (1740.8e6, 512)))
    online = next(each for each in plan if "online" in each["name"] and each["name"].startswith("4xp5en"))
    assert online["trainer_usd"] == pytest.approx(hours * 4 * 63.296, abs=1)
    assert "the whole schedule on" in plan_table(plan)


def test_gpu_of_maps_device_names_of_h100_and_h200_and_gives_none_for_cpu() -> None:
    assert gpu_of("NVIDIA H200") == "H200"
    assert gpu_of("NVIDIA H100 80GB HBM3") == "H100"
    assert gpu_of("cpu") is None


def test_the_first_and_the_last_steps_do_not_count() -> None:
    clock = iter([100.0, 5.0, 1.0, 10.0, 6.0, 1.5, 30.0, 7.0, 2.5, 90.0, 9.0, 9.0])
    laps = Laps(rows=4, others_s=lambda: 0.0)
    laps.marks = [(next(clock), next(clock), next(clock), 1.0) for _ in range(4)]
    assert laps.told(warm=2, tail=1) == {
        "images": 4,
        "wall_s": 20,
        "images_per_s": 0.2,
        "trainer_cpu_ms": 250,
        "others_cpu_ms": 250,
        "wait_share": 0.05,
    }


def test_ways_to_train_stand_in_one_table_with_their_cost_at_the_assumed_price() -> None:
    script = MeasuredTraining(wall_s=36.0, images=100, step_s=0.4, images_at_once=2, peak_bytes=None)
    joint = MeasuredTraining(wall_s=9.0, images=100, step_s=0.1, images_at_once=4, peak_bytes=2**30)
    runs, terms = {"script": [script], "joint-2": [joint]}, {"flops": 10, "device_flops_per_s": 1000.0}
    facts = {way: facts_of(each, batch=2, price_usd_per_hour=0.5, **terms) for way, each in runs.items()}
    head, _, *lines = table(facts, ratios(runs, "script"), over="script", price_usd_per_hour=0.5).splitlines()
    assert "at an assumed $0.5/h" in head
    assert [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines] == [
        ["script", "36", "0.36", "2.78", "400", "5", "0.05", "–", "0.1", "1", "1"],
        ["joint-2", "9", "0.09", "11.11", "100", "40", "0.4", "1024", "0.025", "4", "8"],
    ]
