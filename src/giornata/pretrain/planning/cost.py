"""Hours, GPU hours, dollars and encoders of a run: pure arithmetic over rates and prices.

hours     = sum over phases of samples / (images/s) / 3600
GPU hours = hours x instances x GPUs of each
dollars   = hours x (trainers n p + encoders m q) + precompute + storage
encoders  = ceil(headroom x demand / (rate of one x availability))
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

HOUR_S = 3600
GB = 1e9
ROUNDING = 1e-9  # a quotient that is whole up to floating point is whole


def encoders_for(
    demand_per_s: float, encoder_per_s: float, *, headroom: float = 1.1, availability: float = 1.0
) -> int:
    """The number of encoders that feed trainers which ask for `demand_per_s` images. `availability` is the share of
    time, in (0, 1], in which an encoder is there. Raises ValueError for what is not positive."""
    if min(demand_per_s, encoder_per_s, headroom) <= 0 or not 0 < availability <= 1:
        raise ValueError("rates and headroom are positive, and availability is in (0, 1]")
    quotient = headroom * demand_per_s / (encoder_per_s * availability)
    return max(1, math.ceil(quotient * (1 - ROUNDING)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Samples that are trained at a rate of the whole cluster, with so many encoder instances beside it."""

    samples: float
    images_per_s: float
    encoders: int = 0

    @property
    def hours(self) -> float:
        """How long it takes."""
        return self.samples / self.images_per_s / HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainers:
    """Instances that train."""

    instances: int
    gpus_each: int
    usd_per_hour: float

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.instances * self.gpus_each


@dataclass(frozen=True, slots=True, kw_only=True)
class Precompute:
    """Encoding before training. `hours` are of the wall clock."""

    hours: float = 0.0
    usd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """What lies in the bucket for `months`, and what is read and written in `requests` and over the network."""

    stored_bytes: float = 0.0
    months: float = 0.0
    usd_per_gb_month: float = 0.0
    traffic_usd: float = 0.0

    @property
    def usd(self) -> float:
        """Lying there and being read."""
        return self.stored_bytes / GB * self.usd_per_gb_month * self.months + self.traffic_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What a run takes, by part. `hours`: encoding beforehand, then training."""

    training_hours: float
    encoding_hours: float
    gpu_hours: float
    trainer_usd: float
    encoder_usd: float
    precompute_usd: float
    storage_usd: float

    @property
    def hours(self) -> float:
        """Of the wall clock."""
        return self.training_hours + self.encoding_hours

    @property
    def total_usd(self) -> float:
        """All parts."""
        return self.trainer_usd + self.encoder_usd + self.precompute_usd + self.storage_usd


NO_PRECOMPUTE = Precompute()
NO_STORAGE = Storage()


def plan(
    phases: Sequence[Phase],
    trainers: Trainers,
    *,
    encoder_usd_per_hour: float = 0.0,
    precompute: Precompute = NO_PRECOMPUTE,
    storage: Storage = NO_STORAGE,
) -> Bill:
    """What phases one after the other take. GPU hours are those of the trainers."""
    hours = sum(phase.hours for phase in phases)
    return Bill(
        training_hours=hours,
        encoding_hours=precompute.hours,
        gpu_hours=hours * trainers.gpus,
        trainer_usd=hours * trainers.instances * trainers.usd_per_hour,
        encoder_usd=sum(phase.hours * phase.encoders for phase in phases) * encoder_usd_per_hour,
        precompute_usd=precompute.usd,
        storage_usd=storage.usd,
    )
