"""How many encoders keep the trainers busy.

    encoders = ceil(h T / (r a))        h headroom, T images/s that the trainers ask for,
    CPUs     = ceil(h T / r_cpu)        r images/s of one encoder, a the share of time that encoders are there
    bytes/s  = T x bytes of a row       r_cpu images/s that one CPU decodes and crops
    bridge   = min(T, r) s x bytes      s seconds that an encoder takes to come back: what it would have brought

T is measured with synthetic latents on the real trainers, r on one actor after it is warm.
"""

import math
from dataclasses import dataclass

ROUNDING = 1e-9  # a quotient that is whole up to floating point is whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What the trainers ask for. `row_bytes`: of what encoders hand over."""

    images_per_s: float
    row_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What one encoder and one CPU bring. `availability` in (0, 1]: the share of time that an encoder is there;
    `encoder_start_s`: what one that was lost takes until it is there again."""

    encoder_images_per_s: float
    cpu_images_per_s: float | None = None
    availability: float = 1.0
    encoder_start_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Fixed sizes of the pools. `bridging_bytes`: rows that lie ready for as long as one encoder is away."""

    encoders: int
    cpus: int | None
    bytes_per_s: float
    bridging_bytes: float


def size(demand: Demand, supply: Supply, *, headroom: float = 1.1) -> Pool:
    """Encoders, CPUs and network for a demand. Raises ValueError for what is not positive."""
    least = min(demand.images_per_s, supply.encoder_images_per_s, supply.cpu_images_per_s or 1.0, headroom)
    if least <= 0 or not 0 < supply.availability <= 1:
        raise ValueError("rates and headroom are positive, and availability is in (0, 1]")
    wanted = headroom * demand.images_per_s
    away_rows = min(demand.images_per_s, supply.encoder_images_per_s) * supply.encoder_start_s
    return Pool(
        encoders=_at_least(wanted / (supply.encoder_images_per_s * supply.availability)),
        cpus=None if supply.cpu_images_per_s is None else _at_least(wanted / supply.cpu_images_per_s),
        bytes_per_s=demand.images_per_s * demand.row_bytes,
        bridging_bytes=away_rows * demand.row_bytes,
    )


def fed_share(*, encoders: int, demand: Demand, supply: Supply) -> float:
    """The share of the demand that so many encoders can feed: 1 when trainers are the limit."""
    return min(1.0, encoders * supply.encoder_images_per_s * supply.availability / demand.images_per_s)


def _at_least(quotient: float) -> int:
    return max(1, math.ceil(quotient * (1 - ROUNDING)))
