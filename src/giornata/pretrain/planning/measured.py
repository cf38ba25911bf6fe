"""What `giornata pretrain size` measured, what follows from it, and how plans and runs take it up.

The file is one JSON object with `measured`; what else it says follows from that and is for people.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from giornata.domain.errors import Fault, InvalidInput
from giornata.pretrain.planning.facts import Facts
from giornata.pretrain.planning.request import GivenEncoderRate, GivenRate, PlanRequest
from giornata.pretrain.planning.sizing import Demand, Pool, Supply, fed_share, size
from giornata.protocol.pretraining import Mode, PretrainConfig

CHECKED = {"extra": "forbid"}
OTHER_BOARDS = frozenset({"PCIE", "NVL", "MIG"})
"""Cards of the same name that are slower than those that the facts know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Median images/s. `spread`: between the quartiles, as a share of it."""

    __pydantic_config__ = CHECKED

    images_per_s: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPhase:
    """`trainers`: those that were measured, together, with synthetic latents; `encoder`: one actor; `cpu`: one
    processor that reads rows and makes them ready for encoders, None where there was no data. `row_bytes`: what goes
    from encoders to trainers."""

    __pydantic_config__ = CHECKED

    name: str
    resolution: int
    trainers: Rate
    encoder: Rate
    cpu: Rate | None
    row_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Of one configuration. `trainers_measured` of its `trainers` worked; devices as they call themselves."""

    __pydantic_config__ = CHECKED

    name: str
    model: str
    mode: Mode
    trainers: int
    trainers_measured: int
    trainer_device: str
    encoder_device: str
    headroom: float
    availability: float
    phases: tuple[MeasuredPhase, ...]
    encoder_start_s: float = 0.0
    """From asking Ray for an encoder to its model being loaded; 0 in files that do not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSize:
    """What a phase needs. `demand_images_per_s` is of all trainers; `estimated` when not all of them were measured:
    the network between them is left out then. `fed_share`: what the `asked` encoders can feed of the demand."""

    name: str
    resolution: int
    demand_images_per_s: float
    estimated: bool
    encoder_images_per_s: float
    cpu_images_per_s: float | None
    pool: Pool
    asked: int
    fed_share: float


def sizes_of(measured: Measured, asked: Mapping[str, int]) -> tuple[PhaseSize, ...]:
    """What follows, phase by phase; `asked`: the encoders of the configuration, by the phase's name."""
    return tuple(_size(measured, phase, asked[phase.name]) for phase in measured.phases)


def _size(measured: Measured, phase: MeasuredPhase, asked: int) -> PhaseSize:
    each = phase.trainers.images_per_s / measured.trainers_measured
    demand = Demand(images_per_s=each * measured.trainers, row_bytes=phase.row_bytes)
    supply = Supply(
        encoder_images_per_s=phase.encoder.images_per_s,
        cpu_images_per_s=None if phase.cpu is None else phase.cpu.images_per_s,
        availability=measured.availability,
        encoder_start_s=measured.encoder_start_s,
    )
    return PhaseSize(
        name=phase.name,
        resolution=phase.resolution,
        demand_images_per_s=demand.images_per_s,
        estimated=measured.trainers_measured != measured.trainers,
        encoder_images_per_s=supply.encoder_images_per_s,
        cpu_images_per_s=supply.cpu_images_per_s,
        pool=size(demand, supply, headroom=measured.headroom),
        asked=asked,
        fed_share=fed_share(encoders=asked, demand=demand, supply=supply),
    )


def read_measured(path: Path) -> Measured:
    """From a file of `giornata pretrain size`. Raises InvalidInput with all faults."""
    hint = "write it with: giornata pretrain size CONFIG --out FILE"
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        values = document["measured"]
    except OSError as error:
        raise InvalidInput([Fault(where=str(path), message=f"cannot be read: {error.strerror}", hint=hint)]) from None
    except (ValueError, KeyError, TypeError):
        raise InvalidInput([Fault(where=str(path), message="does not hold what was measured", hint=hint)]) from None
    try:
        measured = TypeAdapter(Measured).validate_python(values)
    except ValidationError as error:
        raise InvalidInput(
            Fault(where=".".join(map(str, (path, *one["loc"]))), message=one["msg"], hint=hint)
            for one in error.errors(include_url=False)
        ) from None
    if faults := _number_faults(measured, path):
        raise InvalidInput(faults)
    return measured


def _number_faults(measured: Measured, path: Path) -> list[Fault]:
    numbers: dict[str, float] = {
        "trainers": measured.trainers,
        "trainers_measured": measured.trainers_measured,
        "headroom": measured.headroom,
        "availability": measured.availability,
    }
    for phase in measured.phases:
        rates = {"trainers": phase.trainers, "encoder": phase.encoder, "cpu": phase.cpu}
        numbers |= {f"phases.{phase.name}.{name}": rate.images_per_s for name, rate in rates.items() if rate}
    bad = {name: value for name, value in numbers.items() if not 0 < value < float("inf")}
    if measured.availability > 1:
        bad["availability"] = measured.availability
    return [Fault(where=f"{path}: {name}", message=f"cannot be {value:g}") for name, value in bad.items()]


def gpu_known(device: str, facts: Facts) -> str | None:
    """The facts' name of a device that calls itself so ("NVIDIA A100-SXM4-80GB" is A100-80G); None: unknown."""
    words = re.split(r"[\s-]+", device.upper())
    if OTHER_BOARDS & set(words):
        return None
    for gpu in facts.gpus:
        name, _, memory = gpu.name.upper().partition("-")
        if name in words and (not memory or any(word.startswith(memory) for word in words)):
            return gpu.name
    return None


def with_measured_rates(request: PlanRequest, measured: Measured, facts: Facts) -> PlanRequest:
    """The plan with measured rates in the place of known and estimated ones; what the request itself gives wins.

    Plans know rates of encoders through both towers: those of the text tower alone (hybrid) are not taken. Raises
    InvalidInput when they are of another model, or of devices that have no price.
    """
    trainer, encoder = (gpu_known(each, facts) for each in (measured.trainer_device, measured.encoder_device))
    faults = []
    if measured.model != request.model:
        message = f"is of {measured.model}, and the plan of {request.model}"
        faults.append(Fault(where="--measured", message=message, hint="measure with the plan's configuration"))
    if trainer is None:
        message = f"was measured on {measured.trainer_device}, which has no price"
        hint = f"measure on one of {', '.join(gpu.name for gpu in facts.gpus)}"
        faults.append(Fault(where="--measured", message=message, hint=hint))
    if faults or trainer is None:
        raise InvalidInput(faults)
    rates = tuple(
        GivenRate(
            gpu=trainer,
            gpus=measured.trainers_measured,
            resolution=phase.resolution,
            images_per_s=phase.trainers.images_per_s,
        )
        for phase in measured.phases
    )
    return replace(
        request, rates=request.rates + rates, encoder_rates=request.encoder_rates + _encoder_rates(measured, encoder)
    )


def _encoder_rates(measured: Measured, gpu: str | None) -> tuple[GivenEncoderRate, ...]:
    if gpu is None or measured.mode is not Mode.ONLINE:
        return ()
    return tuple(
        GivenEncoderRate(gpu=gpu, resolution=phase.resolution, images_per_s=phase.encoder.images_per_s)
        for phase in measured.phases
    )


def with_measured_encoders(config: PretrainConfig, measured: Measured) -> PretrainConfig:
    """The run with as many encoders beside each phase as were found to be needed. Raises InvalidInput when something
    else was measured."""
    faults = [
        Fault(where=f"--measured: {name}", message=f"was measured with {theirs}, and the run has {ours}")
        for name, theirs, ours in (
            ("model", measured.model, config.model.architecture.value),
            ("mode", measured.mode.value, config.encode.mode.value),
            ("workers.trainers", measured.trainers, config.workers.trainers),
            ("phases", _named(measured.phases), _named(config.phases)),
        )
        if theirs != ours
    ]
    if faults:
        raise InvalidInput(faults)
    sizes = {each.name: each.pool.encoders for each in sizes_of(measured, {p.name: 1 for p in measured.phases})}
    return replace(config, phases=tuple(replace(each, encoders=sizes[each.name]) for each in config.phases))


def _named(phases: tuple[Any, ...]) -> str:
    return ", ".join(f"{each.name} ({each.resolution} px)" for each in phases)
