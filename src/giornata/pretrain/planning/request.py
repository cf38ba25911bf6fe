"""A request for a plan, and its checks. Fields that a run's configuration has too are named alike."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, ValidationInfo

from giornata.domain.errors import InvalidInput
from giornata.pretrain.planning.facts import (
    CHECKED,
    Count,
    EncoderRate,
    Evidence,
    Facts,
    Figure,
    InstancePrice,
    InstanceType,
    TrainingRate,
    check_known,
    known,
    load_facts,
    refused,
)
from giornata.protocol.pretraining import Mode, PretrainConfig, not_empty
from giornata.protocol.pretraining_checks import fault_of

SAME = "same"
"""Encoders on the same type of instance as the trainers."""
TERMS = ("on_demand", "reserved", "interruptible")
TRAINERS = re.compile(r"^(?P<count>[1-9]\d{0,4})x(?P<instance>\S+)$")
DEFAULT_MODEL = "sd2"
GIVEN = "given with the request"


def _known_trainers(name: str, info: ValidationInfo) -> str:
    found = TRAINERS.match(name)
    if found is None:
        raise refused(f"cannot be {name!r}", hint="such as 4xp4de.24xlarge")
    check_known("instance", found["instance"], info)
    return name


KnownInstance = Annotated[str, known("instance")]
Term = Annotated[str, known("term")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPhase:
    """Samples, repeats included, at one resolution (pixels of a side), in steps of `global_batch_size`."""

    __pydantic_config__ = CHECKED

    samples: Count
    resolution: int
    global_batch_size: Count


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
    `encoding_instances`: how many encode at once before a phase; the price does not depend on it. `rates` and
    `encoder_rates` are your own: without a `source` or a `model` they are measured, and of the request's model.

    Of a run's configuration come `configured`, `own` machines, which have their price in `usd_per_hour`, `priced`
    (False: the trainers have no GPU, and no others are named) and `notes`, sentences that go with the plan.
    """

    __pydantic_config__ = CHECKED

    phases: Annotated[tuple[PlanPhase, ...], AfterValidator(not_empty)]
    model: Annotated[str, known("model")] = DEFAULT_MODEL
    name: str = "plan"
    dataset_rows: Count | None = None
    trainers: tuple[Annotated[str, AfterValidator(_known_trainers)], ...] = ()
    encoders: tuple[Annotated[str, known("encoder")], ...] = ()
    modes: Annotated[tuple[Mode, ...], AfterValidator(not_empty)] = tuple(Mode)
    prices: Annotated[str, known("price book")] = "2026-11"
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
    rates: tuple[TrainingRate, ...] = ()
    encoder_rates: tuple[EncoderRate, ...] = ()
    configured: Configured | None = None
    own: tuple[InstanceType, ...] = ()
    priced: bool = True
    notes: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        return sum(phase.samples for phase in self.phases)

    def rows(self, phase: PlanPhase) -> int:
        """Rows that are encoded and stored before a phase: all of the data, whether the phase trains them or not."""
        return phase.samples if self.dataset_rows is None else self.dataset_rows


RATES = ("rates", "encoder_rates")
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
    measured = {"model": values.get("model", DEFAULT_MODEL), "source": GIVEN, "mark": Evidence.MEASURED}
    whole = {**values, **{name: _whole(values[name], measured) for name in RATES if name in values}}
    names = _names(values, facts or load_facts())
    try:
        # Through JSON, in whose strict mode lists are tuples and names are members of an enumeration
        return TypeAdapter(PlanRequest).validate_json(json.dumps(whole, default=str), context=names)
    except ValidationError as error:
        faults = error.errors(include_url=False)
    for one in faults:
        one["loc"] = tuple(part for part in one["loc"] if part != "[key]")
    raise InvalidInput(map(fault_of, faults))


def _whole(rows: Any, rest: Mapping[str, Any]) -> Any:
    """The rows with the rest of their fields. What is no list of rows is left as it is, for the check to refuse."""
    return [{**rest, **row} if isinstance(row, dict) else row for row in rows] if isinstance(rows, list) else rows


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
    there = replace(facts, instances=request.own + facts.instances)
    return replace(
        there,
        figures=tuple(_figures(request, facts)) + facts.figures,
        offers=tuple(_offers(request, there)) + facts.offers,
        training_rates=request.rates + facts.training_rates,
        encoder_rates=request.encoder_rates + facts.encoder_rates,
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


def _offers(request: PlanRequest, facts: Facts) -> Iterator[InstancePrice]:
    for name, usd in request.usd_per_hour.items():
        for term in TERMS:
            yield InstancePrice(
                instance=facts.instance(name).name,
                book=request.prices,
                term=term,
                usd_per_hour=usd,
                source=GIVEN,
                mark=Evidence.PUBLISHED,
            )
