"""What is to be planned. Names of fields are those of a run's configuration where there are such."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

from giornata.pretrain.planning.facts import (
    EncoderRate,
    Facts,
    Figure,
    Flops,
    Instance,
    Mark,
    Offer,
    RowBytes,
    TrainingRate,
)
from giornata.protocol.pretraining import Mode

T = TypeVar("T")
SAME = "same"
"""Encoders on the same type of instance as the trainers."""
TERMS = ("on_demand", "reserved", "interruptible")
TRAINERS = re.compile(r"^(?P<count>[1-9]\d{0,4})x(?P<instance>\S+)$")
GIVEN = "given with the request"
CHECKED = {"strict": True, "extra": "forbid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPhase:
    """So many samples, repeats included, at one resolution (pixels of a side), in steps of `global_batch_size`."""

    __pydantic_config__ = CHECKED

    samples: int
    resolution: int
    global_batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRate:
    """Images per second that you measured on so many GPUs together, with latents and embeddings at hand."""

    __pydantic_config__ = CHECKED

    gpu: str
    gpus: int
    resolution: int
    images_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenEncoderRate:
    """Images per second that you measured on one GPU through the VAE and the text tower."""

    __pydantic_config__ = CHECKED

    gpu: str
    resolution: int
    images_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenModel:
    """A picture of a model that the facts do not know, at one resolution; see `Flops` and `RowBytes`."""

    __pydantic_config__ = CHECKED

    resolution: int
    train_gflop: float
    vae_gflop: float
    text_gflop: float
    latent_bytes: int
    text_bytes: int
    picture_bytes: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMachine:
    """A machine with one GPU at your own price, in every book and term; the facts have no other of this name."""

    __pydantic_config__ = CHECKED

    name: str
    gpu: str
    usd_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """What the run's configuration says. `trainers`: as among the request's, None where there is no price of them;
    `encoders`: actors of one GPU beside each phase, which modes without encoders do not use."""

    __pydantic_config__ = CHECKED

    mode: Mode
    trainers: str | None
    encoders: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What to plan, and with which prices.

    `trainers`: choices such as `4xp4de.24xlarge`; none: those that ship. `encoders`: instances, or `same` for the
    trainers' own. `dataset_rows`: different rows; None: every sample is a row of its own. `storage_months`: how long
    what is encoded before a phase lies in the bucket. `usd_per_hour` overrides the price book for an instance.
    `encoding_instances`: how many encode at once before a phase; the price does not depend on it.

    Of a run's configuration come `configured`, `own` machines, `priced` (False: the trainers have no GPU, and no
    others are named) and `notes`, sentences that go with the plan.
    """

    __pydantic_config__ = CHECKED

    phases: tuple[PlanPhase, ...]
    model: str = "sd2"
    name: str = "plan"
    dataset_rows: int | None = None
    trainers: tuple[str, ...] = ()
    encoders: tuple[str, ...] = ()
    modes: tuple[Mode, ...] = tuple(Mode)
    prices: str = "2026-11"
    trainer_term: str = "on_demand"
    encoder_term: str = "on_demand"
    usd_per_hour: Mapping[str, float] = field(default_factory=dict)
    storage_months: float = 1.0
    storage_usd_per_gb_month: float | None = None
    read_usd_per_gb: float | None = None
    headroom: float = 1.1
    availability: float = 1.0
    encoding_instances: int = 64
    trainer_mfu: float | None = None
    rates: tuple[GivenRate, ...] = ()
    encoder_rates: tuple[GivenEncoderRate, ...] = ()
    models: tuple[GivenModel, ...] = ()
    configured: Configured | None = None
    own: tuple[OwnMachine, ...] = ()
    priced: bool = True
    notes: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """Of all phases."""
        return sum(phase.samples for phase in self.phases)

    def rows(self, phase: PlanPhase) -> int:
        """What is encoded and stored before a phase: all rows that there are, whether it trains them or not."""
        return phase.samples if self.dataset_rows is None else self.dataset_rows


OF_THE_RUN = frozenset({"name", "model", "phases", "configured", "own", "priced", "notes"})
"""Fields of PlanRequest that a run's configuration settles."""


def with_given(request: PlanRequest, facts: Facts) -> Facts:
    """The facts with what the request brings, which wins."""
    measured = {"model": request.model, "source": GIVEN, "mark": Mark.MEASURED}

    def taken(make: Callable[..., T], given: Iterable[object]) -> tuple[T, ...]:
        names = [each.name for each in fields(make) if each.name not in measured]  # type: ignore[arg-type]
        return tuple(make(**measured, **{name: getattr(each, name) for name in names}) for each in given)

    return replace(
        facts,
        figures=tuple(_figures(request, facts)) + facts.figures,
        instances=tuple(_instance(each) for each in request.own) + facts.instances,
        offers=tuple(_offers(request, facts)) + facts.offers,
        training_rates=taken(TrainingRate, request.rates) + facts.training_rates,
        encoder_rates=taken(EncoderRate, request.encoder_rates) + facts.encoder_rates,
        flops=taken(Flops, request.models) + facts.flops,
        row_bytes=taken(RowBytes, request.models) + facts.row_bytes,
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


def _instance(own: OwnMachine) -> Instance:
    return Instance(name=own.name, gpu=own.gpu, gpus=1, source=GIVEN, mark=Mark.PUBLISHED)


def _offers(request: PlanRequest, facts: Facts) -> Iterator[Offer]:
    given = {facts.instance(name).name: usd for name, usd in request.usd_per_hour.items()}
    for name, usd in (given | {each.name: each.usd_per_hour for each in request.own}).items():
        for term in TERMS:
            yield Offer(
                instance=name,
                book=request.prices,
                term=term,
                usd_per_hour=usd,
                source=GIVEN,
                mark=Mark.PUBLISHED,
            )
