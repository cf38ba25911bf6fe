"""What was measured: rates from the loop and the stages themselves, what follows, and who takes it up."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from giornata.domain.errors import InvalidInput
from giornata.pretrain.data import columns
from giornata.pretrain.planning.facts import load_facts
from giornata.pretrain.planning.measured import (
    Measured,
    MeasuredPhase,
    Rate,
    gpu_known,
    read_measured,
    with_measured_encoders,
    with_measured_rates,
)
from giornata.pretrain.planning.ranking import rank
from giornata.pretrain.planning.request import PlanRequest, request_of
from giornata.pretrain.recipes import sd2_base, sdxl_tiny
from giornata.pretrain.synthetic import (
    encoder_rates,
    measure_loop,
    measured_config,
    report_of,
    synthetic_feeds,
    to_encode,
)
from giornata.pretrain.training.metrics_log import METRICS
from giornata.protocol.pretraining import Mode, PretrainConfig

FACTS = load_facts()
SD2 = request_of({"recipe": "sd2_base"})


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
    one = replace(config, phases=(replace(config.phases[0], samples=24, train_batch_size=3),))
    uses: list[tuple[int, int]] = []
    for place in range(world):
        for feed in synthetic_feeds(one, rank=place, world=world)(0, None):  # type: ignore[arg-type]
            assert all(len(batch) <= 3 for batch in feed.batches)
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


def test_what_an_encoder_is_given_is_what_a_run_gives_it() -> None:
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


def measured(**changes: Any) -> Measured:
    """The seed's figures, as if they had been measured on one of its eight GPUs."""
    rates = {256: (5908 / 32, 101.85), 512: (1349 / 32, 27.86)}
    values: dict[str, Any] = {
        "name": "sd2-base",
        "model": "sd2",
        "mode": Mode.ONLINE,
        "trainers": 32,
        "trainers_measured": 1,
        "trainer_device": "NVIDIA A100-SXM4-80GB",
        "encoder_device": "NVIDIA A10G",
        "headroom": 1.0,
        "availability": 1.0,
        "phases": tuple(
            MeasuredPhase(
                name=str(pixels),
                resolution=pixels,
                trainers=Rate(images_per_s=trainers),
                encoder=Rate(images_per_s=encoder),
                row_bytes=174_000,
            )
            for pixels, (trainers, encoder) in rates.items()
        ),
    }
    return Measured(**{**values, **changes})


def kept(folder: Path, what: Measured) -> Path:
    path = folder / "measured.json"
    path.write_text(json.dumps({"measured": what.model_dump(mode="json"), "sizes": [], "notes": []}))
    return path


def test_the_seeds_rates_give_the_seeds_missing_encoders() -> None:
    run = online_run()
    run = replace(run, encode=replace(run.encode, encoders=40))
    first, second = report_of(run, measured(), [])["sizes"]
    assert (first["encoders"], second["encoders"]) == (59, 49)
    assert first["demand_images_per_s"] == pytest.approx(5908)
    assert first["bytes_per_s"] == pytest.approx(5908 * 174_000)
    assert (round(first["fed_share"], 2), round(second["fed_share"], 2)) == (0.69, 0.83)
    assert first["estimated"]
    assert not report_of(run, measured(trainers_measured=32), [])["sizes"][0]["estimated"]


def test_a_plan_takes_measured_rates_and_says_so(tmp_path: Path) -> None:
    request = PlanRequest(phases=SD2.phases, trainers=("4xp4de.24xlarge",), modes=(Mode.ONLINE,))
    whole = measured(trainers_measured=32, phases=_scaled(measured().phases, 40.0))
    planned = rank(with_measured_rates(request, read_measured(kept(tmp_path, whole)), FACTS), FACTS).choices[0]
    phase = planned.phases[0]
    assert phase.images_per_s == pytest.approx(40.0 * 5908 / 32)
    assert not phase.training.estimated
    assert phase.training.basis == "measured: given with the request"
    assert phase.encoding.images_per_s == pytest.approx(101.85)
    before = rank(request, FACTS).choices[0].phases[0]
    assert before.images_per_s == pytest.approx(5908)


def _scaled(phases: tuple[MeasuredPhase, ...], factor: float) -> tuple[MeasuredPhase, ...]:
    return tuple(
        each.model_copy(update={"trainers": Rate(images_per_s=each.trainers.images_per_s * factor)})
        for each in phases
    )


def test_rates_of_one_gpu_are_carried_over_to_more_as_an_estimate(tmp_path: Path) -> None:
    request = PlanRequest(phases=SD2.phases, trainers=("4xp5en.48xlarge",), modes=(Mode.ONLINE,))
    one = measured(trainer_device="NVIDIA H200", trainers=1)
    phase = rank(with_measured_rates(request, one, FACTS), FACTS).choices[0].phases[0]
    assert phase.images_per_s == pytest.approx(5908)
    assert phase.training.basis.startswith("estimated: the MFU of 1 H200")


def test_text_towers_alone_are_no_rate_of_both() -> None:
    hybrid = with_measured_rates(SD2, measured(mode=Mode.HYBRID), FACTS)
    assert (len(hybrid.rates), hybrid.encoder_rates) == (2, ())


def test_a_plan_refuses_what_was_measured_on_something_else() -> None:
    with pytest.raises(InvalidInput) as refused:
        with_measured_rates(SD2, measured(model="shapes", trainer_device="CPU"), FACTS)
    assert len(refused.value.faults) == 2


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


def test_a_run_takes_the_number_of_encoders() -> None:
    run = online_run()
    taken = with_measured_encoders(run, measured())
    assert [taken.encoders_of(place) for place in (0, 1)] == [59, 49]
    with pytest.raises(InvalidInput) as refused:
        with_measured_encoders(replace(run, encode=replace(run.encode, mode=Mode.HYBRID)), measured(trainers=8))
    assert {fault.where for fault in refused.value.faults} == {"--measured: mode", "--measured: workers.trainers"}


def test_files_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """They have the scatter of each rate, a CPU's rate and the start of an encoder."""
    path = kept(tmp_path, measured())
    values = json.loads(path.read_text())
    values["measured"]["encoder_start_s"] = 30.0
    for phase in values["measured"]["phases"]:
        del phase["micro_batch"]
        phase["cpu"] = {"images_per_s": 60.0, "spread": 0.1}
        phase["trainers"]["spread"] = 0.1
    path.write_text(json.dumps(values))
    assert read_measured(path) == measured()


def test_a_file_is_checked_whole(tmp_path: Path) -> None:
    path = kept(tmp_path, measured())
    assert read_measured(path) == measured()
    path.write_text(path.read_text().replace('"availability": 1.0', '"availability": 1.5'))
    values = json.loads(path.read_text())
    values["measured"]["phases"][1]["trainers"]["images_per_s"] = -1.0
    path.write_text(json.dumps(values))
    with pytest.raises(InvalidInput) as refused:
        read_measured(path)
    assert len(refused.value.faults) == 2
    path = tmp_path / "other.json"
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_measured(path)
    path.write_text("{}")
    with pytest.raises(InvalidInput, match="does not hold what was measured"):
        read_measured(path)
    path.write_text('{"measured": {"name": 3}}')
    with pytest.raises(InvalidInput, match=r"other\.json\.name"):
        read_measured(path)
