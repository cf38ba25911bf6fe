"""What was measured: rates from the loop and the stages themselves, what follows, and the file that a plan reads."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from giornata.pretrain.data import columns
from giornata.pretrain.planning.facts import gpu_known, load_facts
from giornata.pretrain.planning.from_config import assumed_rates, request_named
from giornata.pretrain.planning.ranking import rank
from giornata.pretrain.recipes import sd2_base, sdxl_tiny
from giornata.pretrain.run_state.metrics_log import METRICS
from giornata.pretrain.synthetic import (
    encoder_rates,
    measure_loop,
    measured_config,
    report_of,
    synthetic_feeds,
    to_encode,
)
from giornata.protocol.pretraining import Mode, PretrainConfig

FACTS = load_facts()


def clock() -> Any:
    seconds = iter(range(10**9))
    return lambda: float(next(seconds))


def online(folder: Path) -> PretrainConfig:
    recipe = sdxl_tiny(str(folder))
    return replace(
        recipe,
        encode=replace(recipe.encode, mode=Mode.ONLINE, encode_batch_size=4),
        train=replace(recipe.train, global_batch_size=8),
    )


# ---- measuring ----


def test_the_loop_is_measured_without_data_and_leaves_nothing_but_scratch(tmp_path: Path) -> None:
    config = online(tmp_path / "none")
    found = measure_loop(
        config, 1, steps=2, device=torch.device("cpu"), scratch=tmp_path / "scratch", clock_s=clock()
    )
    # Between two steps the clock is looked at four times: around the waiting, at the step's end, after validation.
    assert found == (pytest.approx(8 / 3), 8)
    written = {path.relative_to(tmp_path).parts[:3] for path in tmp_path.rglob("*") if path.is_file()}
    assert written <= {("scratch", "run", METRICS)}, "metrics of the loop are written every second"


@pytest.mark.parametrize("world", [1, 3])
def test_synthetic_rows_are_a_share_of_each_step_and_none_comes_twice(tmp_path: Path, world: int) -> None:
    config = online(tmp_path)
    one = replace(config, phases=(replace(config.phases[0], samples=24),))
    uses: list[tuple[int, int]] = []
    for place in range(world):
        for feed in synthetic_feeds(one, rank=place, world=world)(0, None):  # type: ignore[arg-type]
            uses.extend(use for batch in feed.batches for use in batch.uses)
    assert sorted(uses) == [(0, row) for row in range(24)]


@pytest.mark.parametrize("mode", [Mode.ONLINE, Mode.HYBRID])
def test_an_encoder_is_measured_by_its_batches(tmp_path: Path, mode: Mode) -> None:
    config = online(tmp_path)
    config = replace(config, encode=replace(config.encode, mode=mode))
    device, rates = encoder_rates(config, batches=3, clock_s=clock())
    found, row_bytes = rates[config.phases[0].name]
    assert found == 4.0  # four rows a second by this clock
    latents, text = 2 * 4 * 4 * 4 * 2, (77 * 64 + 32) * 2
    assert latents + text < row_bytes < latents + text + 500
    assert device == "CPU"


def test_measured_encoder_input_has_schema_of_online_and_hybrid_runs() -> None:
    assert to_encode(Mode.ONLINE, 32, 2).schema.equals(columns.CUT)
    assert to_encode(Mode.HYBRID, 32, 2).schema.equals(columns.FED)


def test_fewer_trainers_have_the_same_share_of_a_step() -> None:
    run = online_run()
    config, count, notes = measured_config(run, 2)
    assert (count, config.train.global_batch_size) == (2, 256)
    assert any("2 of 32 trainers" in note for note in notes)
    offline = replace(run, encode=replace(run.encode, mode=Mode.OFFLINE))
    config, count, notes = measured_config(offline, None)
    assert (config.encode.mode, count) == (Mode.ONLINE, 32)
    assert ["online would need" in note for note in notes] == [True]
    assert measured_config(run, None) == (run, 32, [])


# ---- what follows ----


def online_run() -> PretrainConfig:
    run = sd2_base()
    workers = replace(run.workers, trainers=32, min_trainers=8)
    return replace(run, workers=workers, encode=replace(run.encode, mode=Mode.ONLINE))


def measured(
    run: PretrainConfig, *, trainers: int = 1, on: str = "NVIDIA A100-SXM4-80GB", mode: Mode = Mode.ONLINE
) -> dict[str, Any]:
    """The seed's figures, as if they had been measured on so many of its GPUs."""
    loop = {"256": (5908 / 32 * trainers, 128), "512": (1349 / 32 * trainers, 32)}
    encoded = {"256": (101.85, 174_000), "512": (27.86, 174_000)}
    return report_of(run, mode, trainers, loop=(on, loop), encoded=("NVIDIA A10G", encoded), notes=[])


def test_the_seeds_rates_give_the_seeds_missing_encoders() -> None:
    run = online_run()
    run = replace(run, encode=replace(run.encode, encoders=40))
    first, second = measured(run)["sizes"]
    assert (first["encoders"], second["encoders"]) == (64, 54)  # a tenth more than 59 and 49
    assert first["demand_images_per_s"] == pytest.approx(5908)
    assert first["bytes_per_s"] == pytest.approx(5908 * 174_000)
    assert (round(first["fed_share"], 2), round(second["fed_share"], 2)) == (0.69, 0.83)
    assert first["estimated"]
    assert not measured(run, trainers=32)["sizes"][0]["estimated"]


def assumed(folder: Path, report: dict[str, Any], *more: str) -> Path:
    file = folder / "rates.toml"
    file.write_text("\n".join((*more, assumed_rates(report, FACTS))))
    return file


def test_a_plan_takes_measured_rates_and_says_so(tmp_path: Path) -> None:
    clusters = ('trainers = ["4xp4de.24xlarge"]', 'modes = ["online"]')
    report = measured(online_run(), trainers=32)
    for size in report["sizes"]:
        size["trainers_images_per_s"] *= 2
    request = request_named("sd2_base", assume=assumed(tmp_path, report, *clusters))
    phase = rank(request, FACTS).choices[0].phases[0]
    assert phase.images_per_s == pytest.approx(2 * 5908)
    assert not phase.training.estimated
    assert phase.training.basis == "measured: given with the request"
    assert phase.encoding.images_per_s == pytest.approx(101.85)


def test_rates_of_one_gpu_are_carried_over_to_more_as_an_estimate(tmp_path: Path) -> None:
    clusters = ('trainers = ["4xp5en.48xlarge"]', 'modes = ["online"]')
    report = measured(online_run(), on="NVIDIA H200")
    phase = rank(request_named("sd2_base", assume=assumed(tmp_path, report, *clusters)), FACTS).choices[0].phases[0]
    assert phase.images_per_s == pytest.approx(5908)
    assert phase.training.basis.startswith("estimated: the MFU of 1 H200")


def test_text_towers_alone_are_no_rate_of_both(tmp_path: Path) -> None:
    report = measured(online_run(), mode=Mode.HYBRID)
    request = request_named("sd2_base", assume=assumed(tmp_path, report))
    assert (len(request.rates), request.encoder_rates) == (2, ())


def test_a_device_without_a_price_gives_no_rates() -> None:
    said = assumed_rates(measured(online_run(), on="CPU"), FACTS)
    assert said.startswith("# sd2-base, sd2: 1 trainers on CPU, encoders on NVIDIA A10G")
    assert "[[rates]]" not in said
    assert said.count("[[encoder_rates]]") == 2


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80G"),
        ("NVIDIA A100-SXM4-40GB", "A100-40G"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A10", None),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("CPU", None),
    ],
)
def test_devices_have_the_names_of_the_price_book(device: str, name: str | None) -> None:
    assert gpu_known(device, FACTS) == name
