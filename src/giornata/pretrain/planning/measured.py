"""Rates that `giornata pretrain run --synthetic` measured, for plans and runs.

The file is one JSON object with `measured`; what else it says follows from that and is for people.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from giornata.domain.errors import Fault, InvalidInput
from giornata.pretrain.planning.facts import Facts
from giornata.pretrain.planning.pricing import encoders_for
from giornata.pretrain.planning.request import GivenEncoderRate, GivenRate, PlanRequest
from giornata.protocol.pretraining import Mode, PretrainConfig

OTHER_BOARDS = frozenset({"PCIE", "NVL", "MIG"})
"""Cards of the same name that are slower than those that the facts know."""


class _Kept(BaseModel):
    """A table of the file. Fields of earlier versions are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Rate(_Kept):
    images_per_s: float = Field(gt=0, allow_inf_nan=False)


class MeasuredPhase(_Kept):
    """`trainers`: those that were measured, together, with made-up latents; `encoder`: one actor. `micro_batch`:
    pictures at once on one device, the most that fit where the configuration names none; None in files that do not
    say. `row_bytes`: what goes from encoders to trainers."""

    name: str
    resolution: int
    trainers: Rate
    encoder: Rate
    micro_batch: int | None = None
    row_bytes: int


class Measured(_Kept):
    """Rates of one configuration. `trainers_measured` of its `trainers` worked. Devices have CUDA's names."""

    name: str
    model: str
    mode: Mode
    trainers: int = Field(gt=0)
    trainers_measured: int = Field(gt=0)
    trainer_device: str
    encoder_device: str
    headroom: float = Field(1.1, gt=0, allow_inf_nan=False)
    availability: float = Field(1.0, gt=0, le=1)
    phases: tuple[MeasuredPhase, ...]

    def demand_images_per_s(self, phase: MeasuredPhase) -> float:
        """The rate of all trainers. Where not all were measured, it leaves out the network between them."""
        return phase.trainers.images_per_s / self.trainers_measured * self.trainers

    def encoders(self, phase: MeasuredPhase) -> int:
        """Encoders that feed all trainers."""
        demand, one = self.demand_images_per_s(phase), phase.encoder.images_per_s
        return encoders_for(demand, one, headroom=self.headroom, availability=self.availability)


def read_measured(path: Path) -> Measured:
    """Read the figures from a file of `giornata pretrain run --synthetic`. Raises InvalidInput with all faults."""
    hint = "write it with: giornata pretrain run CONFIG --synthetic --out FILE"
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))["measured"]
    except OSError as error:
        raise InvalidInput([Fault(where=str(path), message=f"cannot be read: {error.strerror}", hint=hint)]) from None
    except (ValueError, KeyError, TypeError):
        raise InvalidInput([Fault(where=str(path), message="does not hold what was measured", hint=hint)]) from None
    try:
        return Measured.model_validate(values)
    except ValidationError as error:
        raise InvalidInput(
            Fault(where=".".join(map(str, (path, *one["loc"]))), message=one["msg"], hint=hint)
            for one in error.errors(include_url=False)
        ) from None


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
    sizes = {each.name: measured.encoders(each) for each in measured.phases}
    return replace(config, phases=tuple(replace(each, encoders=sizes[each.name]) for each in config.phases))


def _named(phases: tuple[Any, ...]) -> str:
    return ", ".join(f"{each.name} ({each.resolution} px)" for each in phases)
