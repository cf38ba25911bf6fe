"""What a run's configuration asks of a plan: its schedule, its machines, its prices, and the rows that there are.

Machines of the configuration come first among the choices, those that ship after them. `workers.trainers` counts
devices, and whoever rents them rents whole instances: without a price of your own, as many as it takes.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from giornata.domain.errors import Fault, InvalidInput
from giornata.pretrain.data.manifest import MANIFEST, Manifest
from giornata.pretrain.planning.facts import Facts, Instance
from giornata.protocol.pretraining import PretrainConfig

TRAINER, ENCODER = "own-trainer", "own-encoder"
"""Machines with one GPU of the configuration's kind, at its price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Fields of PlanRequest, and sentences on what could not be taken from the configuration."""

    fields: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def values_of_run(config: PretrainConfig, facts: Facts, rows: Found) -> dict[str, Any]:
    """Fields of PlanRequest. `rows`: of `rows_found`."""
    trainers, encoders = _trainers(config, facts), _encoders(config, facts)
    mine = trainers.fields.get("trainers")
    return {
        **schedule_of(config),
        "configured": {
            "mode": config.encode.mode.value,
            "trainers": mine[0] if mine else None,
            "encoders": [config.encoders_of(place) for place in range(len(config.phases))],
        },
        **rows.fields,
        **trainers.fields,
        **encoders.fields,
        "own": trainers.fields.get("own", []) + encoders.fields.get("own", []),
        "notes": [*rows.notes, *trainers.notes, *encoders.notes],
    }


def schedule_of(config: PretrainConfig) -> dict[str, Any]:
    """Fields of PlanRequest that say what is trained, on whatever machines."""
    batch = config.train.global_batch_size
    return {
        "name": config.name,
        "model": config.model.architecture.value,
        "phases": [
            {"samples": phase.samples, "resolution": phase.resolution, "global_batch_size": batch}
            for phase in config.phases
        ],
    }


def rows_found(config: PretrainConfig) -> Found:
    """How many rows the run's shards have, where their manifest lies in a folder of this machine. Raises InvalidInput
    for a manifest that is none."""
    address = config.data.shards
    each = "every sample counts as a row of its own; dataset_rows in a file for --assume says how many there are"
    if "://" in address:
        return Found(fields={}, notes=[f"The rows of {address} are not counted from here: {each}."])
    path = Path(address).expanduser() / MANIFEST
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return Found(fields={}, notes=[f"There are no rows in {address} yet: {each}."])
    except OSError as error:
        raise InvalidInput([Fault(where=str(path), message=f"cannot be read: {error.strerror}")]) from None
    rows = Manifest.from_bytes(content, where=str(path)).rows
    passes = ", ".join(f"{phase.samples / max(1, rows):,.1f}" for phase in config.phases)
    return Found(
        fields={"dataset_rows": rows}, notes=[f"{address} has {rows:,} rows: {passes} passes, phase by phase."]
    )


def _trainers(config: PretrainConfig, facts: Facts) -> Found:
    """`trainers`, the run's own first; with `priced` False when they have no GPU."""
    workers = config.workers
    if not workers.use_gpu:
        return Found(fields={"priced": False})
    gpu = workers.accelerator_type
    if gpu not in _gpus(facts):
        said = "is not given" if gpu is None else f"is {gpu!r}, of which no speed is known"
        known = f"name one of {', '.join(_gpus(facts))} to have it priced"
        note = f"The run's own cluster is not among these, as workers.accelerator_type {said}: {known}."
        return Found(fields={}, notes=[note])
    count, notes = workers.trainers, []
    if workers.trainer_usd_per_h is not None:
        mine, own = f"{count}x{TRAINER}", [_own(TRAINER, gpu, workers.trainer_usd_per_h)]
    else:
        instance, own = _instance(facts, gpu, count), []
        whole = -(-count // instance.gpus)
        mine = f"{whole}x{instance.name}"
        if (idle := whole * instance.gpus - count) > 0:
            notes.append(
                f"{count} trainers take {whole} {instance.name} with {whole * instance.gpus} GPUs, all of which are"
                f" paid and planned: {idle} more trainers would use them, or give workers.trainer_usd_per_h."
            )
    trainers = list(dict.fromkeys((mine, *facts.default_trainers)))
    return Found(fields={"trainers": trainers, "own": own}, notes=notes)


def _encoders(config: PretrainConfig, facts: Facts) -> Found:
    """`encoders` of the kind and at the price that the run names; nothing when it names none, and all are tried."""
    gpu, price = config.encode.accelerator_type, config.workers.encoder_usd_per_h
    if gpu is None:
        if price is None or not config.workers.use_gpu:
            return Found(fields={})
        note = "workers.encoder_usd_per_h is not used, as encode.accelerator_type does not say of which GPU it is."
        return Found(fields={}, notes=[note])
    if gpu not in _gpus(facts):
        note = f"encode.accelerator_type is {gpu!r}, of which no speed is known: other encoders are priced."
        return Found(fields={}, notes=[note])
    if price is not None:
        return Found(fields={"encoders": [ENCODER], "own": [_own(ENCODER, gpu, price)]})
    return Found(fields={"encoders": [next(each.name for each in facts.instances if each.gpu == gpu)]})


def _instance(facts: Facts, gpu: str, count: int) -> Instance:
    """The cheapest that has all these GPUs; of which several are joined, the first, whose network is known."""
    known = [each for each in facts.instances if each.gpu == gpu]
    newest = facts.books[-1]
    priced = {
        each: offer.usd_per_hour / each.gpus
        for each in known
        if each.gpus >= count and (offer := facts.offer(each.name, book=newest, term="on_demand"))
    }
    return min(priced, key=lambda each: priced[each]) if priced else known[0]


def _own(name: str, gpu: str, usd_per_hour: float) -> dict[str, Any]:
    return {"name": name, "gpu": gpu, "usd_per_hour": usd_per_hour}


def _gpus(facts: Facts) -> list[str]:
    """Of which an instance is known."""
    return list(dict.fromkeys(each.gpu for each in facts.instances))
