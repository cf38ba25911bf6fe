"""A plan's request from a run's configuration: its schedule, machines and prices, and the rows of its shards.

Machines of the configuration come first among the choices, those that ship after them. `workers.trainers` counts
devices, but whole instances are rented: without a price of your own, as many as it takes. What only a plan asks
(clusters, prices and rates to compare, months of storage) stands in a file of its own, for `--assume`; such a file of
measured rates is made here as well.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from giornata.domain.errors import Fault, InvalidInput, collecting
from giornata.pretrain.data.manifest import MANIFEST, Manifest
from giornata.pretrain.planning.facts import Evidence, Facts, InstanceType, gpu_known, load_facts
from giornata.pretrain.planning.request import GIVEN, OF_THE_RUN, PlanRequest, request_of, schedule_of
from giornata.pretrain.recipes import read_config
from giornata.protocol.pretraining import Mode, PretrainConfig
from giornata.protocol.pretraining_checks import read_toml

TRAINER, ENCODER = "own-trainer", "own-encoder"
"""Machines with one GPU of the configuration's kind, at its price."""
ASSUMED = tuple(each.name for each in fields(PlanRequest) if each.name not in OF_THE_RUN)
"""Fields that a file for `--assume` may have."""


def request_named(config: str, facts: Facts | None = None, *, assume: Path | None = None) -> PlanRequest:
    """The request of a run's recipe or TOML file, and of a file with assumptions.

    Raises InvalidInput with all faults of both.
    """
    faults: list[Fault] = []
    assumed: dict[str, Any] = {}
    with collecting(faults):
        run = read_config(config)
    with collecting(faults):
        assumed = {} if assume is None else _assumed(assume)
    if faults:
        raise InvalidInput(faults)
    return request_of_run(run, facts, **assumed)


def request_of_run(config: PretrainConfig, facts: Facts | None = None, **assumed: Any) -> PlanRequest:
    """The request of a run's configuration, in its mode and in the others; `assumed` are fields of PlanRequest.

    Without a GPU for trainers nothing is priced, unless `trainers` are assumed.
    Raises InvalidInput with all faults.
    """
    known, notes = facts or load_facts(), list[str]()
    rows = {} if "dataset_rows" in assumed else _rows_found(config, notes)
    trainers, encoders = _trainers(config, known, notes), _encoders(config, known, notes)
    mine, theirs = trainers.get("trainers"), assumed.get("usd_per_hour", {})
    own = [*trainers.pop("own", ()), *encoders.pop("own", ())]
    paid = {TRAINER: config.workers.trainer_usd_per_h, ENCODER: config.workers.encoder_usd_per_h}
    usd = {each["name"]: paid[each["name"]] for each in own}
    configured = {
        "mode": config.encode.mode.value,
        "trainers": mine[0] if mine and not assumed.get("trainers") else None,
        "encoders": [config.encoders_of(place) for place in range(len(config.phases))],
    }
    values = {
        **schedule_of(config),
        "configured": configured,
        **rows,
        **trainers,
        **encoders,
        "own": own,
        "notes": notes,
        **({"priced": True} if assumed.get("trainers") else {}),
        **assumed,
        "usd_per_hour": {**usd, **theirs} if isinstance(theirs, dict) else theirs,
    }
    return request_of(values, known)


def _assumed(path: Path) -> dict[str, Any]:
    values = read_toml(path)
    unknown = [name for name in values if name not in ASSUMED]
    if unknown:
        raise InvalidInput(
            Fault(
                where=f"{path}: {name}",
                message="belongs to the run's configuration"
                if name in OF_THE_RUN
                else "is not a value that a plan can assume",
                hint=f"one of {', '.join(ASSUMED)}",
            )
            for name in unknown
        )
    return values


def _rows_found(config: PretrainConfig, notes: list[str]) -> dict[str, Any]:
    """`dataset_rows` of the run's shards, where their manifest lies in a folder of this machine. Raises InvalidInput
    for a broken manifest."""
    address = config.data.shards
    each = "every sample counts as a row of its own; dataset_rows in a file for --assume says how many there are"
    if "://" in address:
        notes.append(f"The rows of {address} are not counted from here: {each}.")
        return {}
    path = Path(address).expanduser() / MANIFEST
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        notes.append(f"There are no rows in {address} yet: {each}.")
        return {}
    except OSError as error:
        raise InvalidInput([Fault(where=str(path), message=f"cannot be read: {error.strerror}")]) from None
    rows = Manifest.from_bytes(content, where=str(path)).rows
    passes = ", ".join(f"{phase.samples / max(1, rows):,.1f}" for phase in config.phases)
    notes.append(f"{address} has {rows:,} rows: {passes} passes, phase by phase.")
    return {"dataset_rows": rows}


def _trainers(config: PretrainConfig, facts: Facts, notes: list[str]) -> dict[str, Any]:
    """`trainers`, the run's own first; with `priced` False when they have no GPU."""
    workers = config.workers
    if not workers.use_gpu:
        return {"priced": False}
    gpu = workers.accelerator_type
    if gpu not in _gpus(facts):
        said = "is not given" if gpu is None else f"is {gpu!r}, of which no speed is known"
        known = f"name one of {', '.join(_gpus(facts))} to have it priced"
        notes.append(f"The run's own cluster is not among these, as workers.accelerator_type {said}: {known}.")
        return {}
    count = workers.trainers
    if workers.trainer_usd_per_h is not None:
        mine, own = f"{count}x{TRAINER}", [_own(TRAINER, gpu)]
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
    return {"trainers": trainers, "own": own}


def _encoders(config: PretrainConfig, facts: Facts, notes: list[str]) -> dict[str, Any]:
    """`encoders` of the kind and at the price that the run names; nothing when it names none, and all are tried."""
    gpu, price = config.encode.accelerator_type, config.workers.encoder_usd_per_h
    if gpu is None:
        if price is not None and config.workers.use_gpu:
            unused = "workers.encoder_usd_per_h is not used, as encode.accelerator_type does not say"
            notes.append(f"{unused} of which GPU it is.")
        return {}
    if gpu not in _gpus(facts):
        notes.append(f"encode.accelerator_type is {gpu!r}, of which no speed is known: other encoders are priced.")
        return {}
    if price is not None:
        return {"encoders": [ENCODER], "own": [_own(ENCODER, gpu)]}
    return {"encoders": [next(each.name for each in facts.instances if each.gpu == gpu)]}


def _instance(facts: Facts, gpu: str, count: int) -> InstanceType:
    """The cheapest that has all these GPUs; of which several are joined, the first, whose network is known."""
    known = [each for each in facts.instances if each.gpu == gpu]
    newest = facts.books[-1]
    priced = {
        each: offer.usd_per_hour / each.gpus
        for each in known
        if each.gpus >= count and (offer := facts.offer(each.name, book=newest, term="on_demand"))
    }
    return min(priced, key=lambda each: priced[each]) if priced else known[0]


def _own(name: str, gpu: str) -> dict[str, Any]:
    return {"name": name, "gpu": gpu, "gpus": 1, "source": GIVEN, "mark": Evidence.PUBLISHED}


def _gpus(facts: Facts) -> list[str]:
    """GPUs that some known instance has."""
    return list(dict.fromkeys(each.gpu for each in facts.instances))


def assumed_rates(report: Mapping[str, Any], facts: Facts) -> str:
    """The rates of a report of giornata.pretrain.synthetic as TOML.

    A device without a price is named in the first line only. Plans know rates of encoders through both towers: those
    of the text tower alone (hybrid) are left out.
    """
    trainer, encoder = (gpu_known(report[name], facts) for name in ("trainer_device", "encoder_device"))
    encoder = encoder if report["mode"] == Mode.ONLINE else None
    return "\n".join(
        [
            f"# {report['name']}, {report['model']}: {report['trainers_measured']} trainers on"
            f" {report['trainer_device']}, encoders on {report['encoder_device']}",
            *_tables("rates", report, trainer, "trainers_images_per_s", gpus=report["trainers_measured"]),
            *_tables("encoder_rates", report, encoder, "encoder_images_per_s"),
            "",
        ]
    )


def _tables(name: str, report: Mapping[str, Any], gpu: str | None, rate: str, **more: int) -> Iterator[str]:
    for size in report["sizes"] if gpu is not None else ():
        numbers = {**more, "resolution": size["resolution"], "images_per_s": float(size[rate])}
        yield f'[[{name}]]\ngpu = "{gpu}"\n' + "\n".join(f"{key} = {number}" for key, number in numbers.items())
