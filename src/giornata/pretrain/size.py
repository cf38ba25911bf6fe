"""How many encoders a run needs, measured: `python -m giornata.pretrain.size CONFIG [--report FILE] [--address RAY]`.

First the trainers alone, with synthetic latents; then one encoder; then one processor that reads and cuts. Each has
the machines for itself, so no figure is spoilt by another, and none tells what they do to one another on one machine.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from giornata.domain.errors import Fault, GiornataError, InvalidInput
from giornata.pretrain.encoding.encoders import gpus_of_an_encoder
from giornata.pretrain.planning.measured import Measured, MeasuredPhase, Rate, sizes_of
from giornata.pretrain.recipes import read_config
from giornata.pretrain.run_storage import rooted
from giornata.protocol.pretraining import BESIDE, Mode, PretrainConfig

STEPS, BATCHES = 30, 10


def measure(
    config: PretrainConfig, *, trainers: int, steps: int, batches: int, headroom: float, availability: float
) -> tuple[Measured, list[str]]:
    """On the Ray that is there; with notes on what could not be measured. Raises InvalidInput, with all that the Ray
    lacks, before anything is begun."""
    from giornata.pretrain.measure_encoders import measure_encoders
    from giornata.pretrain.measure_trainers import measure_trainers

    _refuse_without_room(config, trainers)
    _tell("trainers", config)
    trainer_device, by_step = measure_trainers(config, trainers=trainers, steps=steps)
    _tell("encoder", config)
    encoder = measure_encoders(config, batches=batches)
    _tell("reading", config)
    reading, notes = _reading(config)
    phases = tuple(
        MeasuredPhase(
            name=phase.name,
            resolution=phase.resolution,
            trainers=rate_of(by_step[phase.name]),
            encoder=rate_of(encoder.images_per_s[phase.name]),
            cpu=rate_of(reading[phase.name]) if reading.get(phase.name) else None,
            row_bytes=encoder.row_bytes[phase.name],
        )
        for phase in config.phases
    )
    measured = Measured(
        name=config.name,
        model=config.model.architecture.value,
        mode=config.encode.mode,
        trainers=config.workers.trainers,
        trainers_measured=trainers,
        trainer_device=trainer_device,
        encoder_device=encoder.device,
        encoder_start_s=encoder.start_s,
        headroom=headroom,
        availability=availability,
        phases=phases,
    )
    return measured, notes


def rate_of(images_per_s: Sequence[float]) -> Rate:
    """Median and the distance between the quartiles."""
    middle = statistics.median(images_per_s)
    if len(images_per_s) < 2:
        return Rate(images_per_s=middle, spread=0.0)
    low, _, high = statistics.quantiles(images_per_s, n=4, method="inclusive")
    return Rate(images_per_s=middle, spread=(high - low) / middle)


def _reading(config: PretrainConfig) -> tuple[dict[str, list[float]], list[str]]:
    from giornata.pretrain.measure_encoders import measure_reading_on_ray

    try:
        return measure_reading_on_ray(config), []
    except InvalidInput as error:
        return {}, [f"How many CPUs read and cut is not said, as there are no rows: {error}"]


def _refuse_without_room(config: PretrainConfig, trainers: int) -> None:
    """Ray Train and Ray would wait for ever for what is not there."""
    import ray

    there, workers, where = ray.cluster_resources(), config.workers, config.encode.accelerator_type
    needs = {"CPU": float(trainers + 1)}
    if workers.use_gpu:
        needs["GPU"] = float(trainers)
    encoder = gpus_of_an_encoder(config)
    needs["GPU"] = max(needs.get("GPU", 0.0), encoder)
    kinds = {"workers.accelerator_type": workers.accelerator_type, "encode.accelerator_type": where}
    faults = [
        Fault(
            where=f"Ray's {name}",
            message=f"{need:g} are needed, and {there.get(name, 0):g} are there",
            hint="measure fewer with --trainers 1, or give the --address of a larger Ray",
        )
        for name, need in needs.items()
        if need > there.get(name, 0)
    ]
    faults += [
        Fault(where=name, message=f"no node of this Ray has {kind}", hint="give the --address of one that has")
        for name, kind in kinds.items()
        if kind is not None and f"accelerator_type:{kind}" not in there
    ]
    if faults:
        raise InvalidInput(faults)


def report_of(config: PretrainConfig, measured: Measured, notes: Sequence[str]) -> dict[str, Any]:
    """`measured`, `sizes` by phase, and `notes` for people."""
    asked = {phase.name: config.encoders_of(place) for place, phase in enumerate(config.phases)}
    workers = config.workers
    return {
        "measured": asdict(measured),
        "sizes": [asdict(each) for each in sizes_of(measured, asked)],
        "trainers_usd_per_h": workers.trainers * (workers.trainer_usd_per_h or 0.0) or None,
        "encoder_usd_per_h": workers.encoder_usd_per_h,
        "notes": list(notes),
    }


def sized_config(config: PretrainConfig, trainers: int | None) -> tuple[PretrainConfig, int, list[str]]:
    """What is measured, with how many trainers, and what has to be said of it."""
    notes = []
    if config.encode.mode not in BESIDE:
        notes.append(
            f"The configuration's mode is {config.encode.mode}, which has no encoders beside the run: this is what"
            " online would need."
        )
        config = replace(config, encode=replace(config.encode, mode=Mode.ONLINE))
    count = trainers or config.workers.trainers
    if count < config.workers.trainers:
        # Each has the share of a step that it would have among all.
        batch = max(count, config.train.global_batch_size * count // config.workers.trainers)
        config = replace(config, train=replace(config.train, global_batch_size=batch))
        notes.append(
            f"{count} of {config.workers.trainers} trainers were measured; the demand of all is an estimate that"
            " leaves out the network between them."
        )
    if not config.workers.use_gpu:
        notes.append("Each was measured alone: on shared processors trainers and encoders slow one another down.")
    return config, count, notes


def _tell(what: str, config: PretrainConfig) -> None:
    phases = [f"{phase.name} ({phase.resolution} px)" for phase in config.phases]
    print(json.dumps({"what": what, "phases": phases}), flush=True)  # noqa: T201 - for the command line


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m giornata.pretrain.size", description=__doc__)
    parser.add_argument("config", help="a recipe's name, or a TOML file")
    parser.add_argument("--report", type=Path, help="write a report to this file, as JSON")
    parser.add_argument("--address", help="of a Ray cluster")
    parser.add_argument("--trainers", type=int, help="how many are measured")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--headroom", type=float, default=1.1)
    parser.add_argument("--availability", type=float, default=1.0)
    given = parser.parse_args(arguments)
    try:
        report = _run(given)
    except InvalidInput as error:
        _write(given.report, {"faults": [asdict(fault) for fault in error.faults]})
        parser.exit(2, f"{error}\n")
    except GiornataError as error:
        _write(given.report, {"error": str(error)})
        parser.exit(1, f"{error}\n")
    _write(given.report, report)


def _run(given: argparse.Namespace) -> dict[str, Any]:
    whole = rooted(read_config(given.config))
    config, trainers, notes = sized_config(whole, given.trainers)
    from ray.train import TrainingFailedError

    from giornata.pretrain.cluster import connected

    with connected(given.address):
        try:
            measured, more = measure(
                config,
                trainers=trainers,
                steps=given.steps,
                batches=given.batches,
                headroom=given.headroom,
                availability=given.availability,
            )
        except TrainingFailedError as error:
            raise GiornataError(f"the trainers could not be measured: {error}") from error
    return report_of(whole, measured, [*notes, *more])


def _write(path: Path | None, values: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(values), encoding="utf-8")


if __name__ == "__main__":
    main()
