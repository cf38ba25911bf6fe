"""A request for a plan, and its checks. Fields that a run's configuration has too are named alike."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, ValidationInfo
from pydantic_core import PydanticCustomError

from giornata.domain.errors import InvalidInput
from giornata.pretrain.planning.facts import (
    EncoderRate,
    Evidence,
    Facts,
    Figure,
    InstancePrice,
    InstanceType,
    TrainingRate,
    load_facts,
)
from giornata.protocol.pretraining import Mode, PretrainConfig, not_empty
from giornata.protocol.pretraining_checks import CONTRADICTION, fault_of

SAME = "same"
"""Encoders on the same type of instance as the trainers."""
TERMS = ("on_demand", "reserved", "interruptible")
TRAINERS = re.compile(r"^(?P<count>[1-9]\d{0,4})x(?P<instance>\S+)$")
DEFAULT_MODEL = "sd2"
GIVEN = "given with the request"
CHECKED = {"strict": True, "extra": "forbid", "allow_inf_nan": False}


def _refused(message: str, hint: str) -> PydanticCustomError:
    return PydanticCustomError(CONTRADICTION, "{message}", {"message": message, "hint": hint})


def _check_known(kind: str, name: str, info: ValidationInfo) -> None:
    """Refuse a name of this kind that the validation's context does not hold."""
    shown, also = (info.context or {})[kind]
    if name not in shown and name not in also:
        raise _refused(f"no {kind} {name!r} is known", hint=f"one of {', '.join(shown)}")


def _known(kind: str) -> AfterValidator:
    def check(name: str, info: ValidationInfo) -> str:
        _check_known(kind, name, info)
        return name

    return AfterValidator(check)


def _known_trainers(name: str, info: ValidationInfo) -> str:
    found = TRAINERS.match(name)
    if found is None:
        raise _refused(f"cannot be {name!r}", hint="such as 4xp4de.24xlarge")
    _check_known("instance", found["instance"], info)
    return name


Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
KnownGpu = Annotated[str, _known("GPU")]
KnownInstance = Annotated[str, _known("instance")]
Term = Annotated[str, _known("term")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPhase:
    """Samples, repeats included, at one resolution (pixels of a side), in steps of `global_batch_size`."""

    __pydantic_config__ = CHECKED

    samples: Count
    resolution: int
    global_batch_size: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenEncoderRate:
    """Images per second that you measured on one GPU through the VAE and the text tower."""

    __pydantic_config__ = CHECKED

    gpu: KnownGpu
    resolution: int
    images_per_s: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRate(GivenEncoderRate):
    """Images per second that you measured on `gpus` GPUs together, with latents and embeddings at hand."""

    gpus: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMachine:
    """A machine with one GPU at your own price, in every book and term; the facts have no other of this name."""

    __pydantic_config__ = CHECKED

    name: str
    gpu: str
    usd_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """The run's own choice. `trainers`: one of the request's, None without a price; `encoders`: actors of one GPU
    beside each phase, which modes without encoders do not use."""

    __pydantic_config__ = CHECKED

    mode: Mode
    trainers: str | None
    encoders: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The phases to plan, and the prices to use.

    `trainers`: choices such as `4xp4de.24xlarge`; none: those that ship. `encoders`: instances, or `same` for the
    trainers' own. `dataset_rows`: different rows; None: every sample is a row of its own. `storage_months`: how long
    what is encoded before a phase lies in the bucket. `usd_per_hour` overrides the price book for an instance.
    `encoding_instances`: how many encode at once before a phase; the price does not depend on it.

    Of a run's configuration come `configured`, `own` machines, `priced` (False: the trainers have no GPU, and no
    others are named) and `notes`, sentences that go with the plan.
    """

    __pydantic_config__ = CHECKED

    phases: Annotated[tuple[PlanPhase, ...], AfterValidator(not_empty)]
    model: Annotated[str, _known("model")] = DEFAULT_MODEL
    name: str = "plan"
    dataset_rows: Count | None = None
    trainers: tuple[Annotated[str, AfterValidator(_known_trainers)], ...] = ()
    encoders: tuple[Annotated[str, _known("encoder")], ...] = ()
    modes: Annotated[tuple[Mode, ...], AfterValidator(not_empty)] = tuple(Mode)
    prices: Annotated[str, _known("price book")] = "2026-11"
    trainer_term: Term = "on_demand"
    encoder_term: Term = "on_demand"
    usd_per_hour: Mapping[KnownInstance, Annotated[float, Field(ge=0, le=100_000)]] = field(default_factory=dict)
    storage_months: Annotated[float, Field(ge=0, le=1200)] = 1.0
    storage_usd_per_gb_month: Annotated[float, Field(ge=0, le=1000)] | None = None
    read_usd_per_gb: Annotated[float, Field(ge=0, le=1000)] | None = None
    headroom: Annotated[float, Field(ge=1, le=10)] = 1.1
    availability: Annotated[float, Field(ge=0.01, le=1)] = 1.0
    encoding_instances: Count = 64
    trainer_mfu: Annotated[float, Field(ge=0.001, le=1)] | None = None
    rates: tuple[GivenRate, ...] = ()
    encoder_rates: tuple[GivenEncoderRate, ...] = ()
    configured: Configured | None = None
    own: tuple[OwnMachine, ...] = ()
    priced: bool = True
    notes: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        return sum(phase.samples for phase in self.phases)

    def rows(self, phase: PlanPhase) -> int:
        """Rows that are encoded and stored before a phase: all of the data, whether the phase trains them or not."""
        return phase.samples if self.dataset_rows is None else self.dataset_rows


OF_THE_RUN = frozenset({"name", "model", "phases", "configured", "own", "priced", "notes"})
"""Fields of PlanRequest that a run's configuration settles."""


def schedule_of(config: PretrainConfig) -> dict[str, Any]:
    """Fields of PlanRequest that tell what a run trains, on whatever machines."""
    batch = config.train.global_batch_size
    return {
        "name": config.name,
        "model": config.model.architecture.value,
        "phases": [
            {"samples": phase.samples, "resolution": phase.resolution, "global_batch_size": batch}
            for phase in config.phases
        ],
    }


def request_of(values: Mapping[str, Any], facts: Facts | None = None) -> PlanRequest:
    """A request from plain values, such as `{"phases": [{"samples": 10**8, "resolution": 256, ...}]}`.

    Raises InvalidInput with all faults, each with its field.
    """
    known = facts or load_facts()
    try:
        # Through JSON, in whose strict mode lists are tuples and names are members of an enumeration
        return TypeAdapter(PlanRequest).validate_json(json.dumps(values, default=str), context=_names(values, known))
    except ValidationError as error:
        faults = error.errors(include_url=False)
    for one in faults:
        one["loc"] = tuple(part for part in one["loc"] if part != "[key]")
    raise InvalidInput(map(fault_of, faults))


def _names(given: Mapping[str, Any], facts: Facts) -> dict[str, tuple[Sequence[str], Collection[str]]]:
    """Return the names that a hint shows, and other known names, for each kind of name."""
    instances = [each.name for each in facts.instances]
    short = {each.short for each in facts.instances} | {each["name"] for each in given.get("own", ())}
    return {
        "instance": (instances, short),
        "encoder": (instances, short | {SAME}),
        "model": (facts.models, ()),
        "GPU": ([each.name for each in facts.gpus], ()),
        "price book": (facts.books, ()),
        "term": (TERMS, ()),
    }


def with_given(request: PlanRequest, facts: Facts) -> Facts:
    """The facts with what the request brings, which wins."""
    measured: dict[str, Any] = {"model": request.model, "source": GIVEN, "mark": Evidence.MEASURED}

    return replace(
        facts,
        figures=tuple(_figures(request, facts)) + facts.figures,
        instances=tuple(_instance(each) for each in request.own) + facts.instances,
        offers=tuple(_offers(request, facts)) + facts.offers,
        training_rates=tuple(TrainingRate(**measured, **asdict(each)) for each in request.rates)
        + facts.training_rates,
        encoder_rates=tuple(EncoderRate(**measured, **asdict(each)) for each in request.encoder_rates)
        + facts.encoder_rates,
    )


def _figures(request: PlanRequest, facts: Facts) -> Iterator[Figure]:
    given = {
        "trainer_mfu": request.trainer_mfu,
        "storage_usd_per_gb_month": request.storage_usd_per_gb_month,
        "read_usd_per_gb": request.read_usd_per_gb,
    }
    for name, value in given.items():
        if value is not None:
            yield replace(facts.figure(name), value=value, source=GIVEN)


def _instance(own: OwnMachine) -> InstanceType:
    return InstanceType(name=own.name, gpu=own.gpu, gpus=1, source=GIVEN, mark=Evidence.PUBLISHED)


def _offers(request: PlanRequest, facts: Facts) -> Iterator[InstancePrice]:
    given = {facts.instance(name).name: usd for name, usd in request.usd_per_hour.items()}
    for name, usd in (given | {each.name: each.usd_per_hour for each in request.own}).items():
        for term in TERMS:
            yield InstancePrice(
                instance=name,
                book=request.prices,
                term=term,
                usd_per_hour=usd,
                source=GIVEN,
                mark=Evidence.PUBLISHED,
            )
