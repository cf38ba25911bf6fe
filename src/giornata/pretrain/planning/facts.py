"""Prices, instances, FLOPs and rates of `facts.toml` and `prices.toml`, each with its source and `Evidence`."""

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, AliasPath, Field, TypeAdapter, ValidationInfo
from pydantic_core import PydanticCustomError

from giornata.protocol.pretraining_checks import CONTRADICTION

T = TypeVar("T")
INTERRUPTIBLE = "interruptible"
CHECKED = {"strict": True, "extra": "forbid", "allow_inf_nan": False}
OTHER_BOARDS = frozenset({"PCIE", "NVL", "MIG"})
"""Cards of the same name that are slower than those that the facts know."""


def refused(message: str, hint: str) -> PydanticCustomError:
    return PydanticCustomError(CONTRADICTION, "{message}", {"message": message, "hint": hint})


def check_known(kind: str, name: str, info: ValidationInfo) -> None:
    """Refuse a name of this kind that the validation's context does not hold; without one, nothing."""
    shown, also = info.context[kind] if info.context else ((name,), ())
    if name not in shown and name not in also:
        raise refused(f"no {kind} {name!r} is known", hint=f"one of {', '.join(shown)}")


def known(kind: str) -> AfterValidator:
    def check(name: str, info: ValidationInfo) -> str:
        check_known(kind, name, info)
        return name

    return AfterValidator(check)


Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]


class Evidence(StrEnum):
    """The way in which a figure is known."""

    PUBLISHED = "published"
    RECOVERED = "recovered"
    CALCULATED = "calculated"
    MEASURED = "measured"
    GUESS = "guess"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced:
    """A fact, with its source. A field that the fact does not have is refused."""

    __pydantic_config__ = CHECKED

    source: str
    mark: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu(Sourced):
    """`peak_tflops`: dense bf16, in 10^12 FLOP/s."""

    name: str
    peak_tflops: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType(Sourced):
    name: str
    gpu: str
    gpus: int

    @property
    def short(self) -> str:
        """The short name of the instance: `p4de` for `p4de.24xlarge`."""
        return self.name.split(".", maxsplit=1)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstancePrice(Sourced):
    """The price of an instance by the hour. `book`: prices of one time; `term`: on_demand, reserved, interruptible.

    `read_on`: the day on which the price was read at `url`; None for a price that the request gives.
    """

    instance: str
    book: str
    term: str
    usd_per_hour: float
    provider: str = ""
    read_on: date | None = None
    url: str = ""

    @property
    def basis(self) -> str:
        """`published: AWS, 2026-11-09, on_demand, us-east-1`."""
        read = f"{self.provider}, {self.read_on}, {self.term}, " if self.read_on else ""
        return f"{self.mark}: {read}{self.source}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops(Sourced):
    """10^9 FLOPs for a picture: training (forward and backward), the VAE's encoder, the text tower."""

    model: str
    resolution: int
    train_gflop: float
    vae_gflop: float
    text_gflop: float

    @property
    def encode_gflop(self) -> float:
        return self.vae_gflop + self.text_gflop


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBytes(Sourced):
    """Bytes of one sample. `latent_bytes`: a posterior sample in fp16; mean and logvar take twice that."""

    model: str
    resolution: int
    latent_bytes: int
    text_bytes: int
    picture_bytes: int

    @property
    def moments_bytes(self) -> int:
        """The posterior's mean and logvar, from which every epoch draws anew."""
        return 2 * self.latent_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderRate(Sourced):
    """Images per second of one GPU through the VAE and the text tower."""

    model: Annotated[str, known("model")]
    gpu: Annotated[str, known("GPU")]
    resolution: int
    images_per_s: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRate(EncoderRate):
    """Images per second of `gpus` GPUs together, with latents and embeddings at hand."""

    gpus: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure(Sourced):
    name: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts of plans. Earlier rows win over later ones."""

    gpus: Annotated[tuple[Gpu, ...], Field(validation_alias="gpu")]
    instances: Annotated[tuple[InstanceType, ...], Field(validation_alias="instance")]
    offers: Annotated[tuple[InstancePrice, ...], Field(validation_alias="offer")]
    flops: tuple[Flops, ...]
    row_bytes: tuple[RowBytes, ...]
    training_rates: Annotated[tuple[TrainingRate, ...], Field(validation_alias="training_rate")]
    encoder_rates: Annotated[tuple[EncoderRate, ...], Field(validation_alias="encoder_rate")]
    figures: Annotated[tuple[Figure, ...], Field(validation_alias="figure")]
    default_trainers: Annotated[tuple[str, ...], Field(validation_alias=AliasPath("defaults", "trainers"))]
    default_encoders: Annotated[tuple[str, ...], Field(validation_alias=AliasPath("defaults", "encoders"))]

    def figure(self, name: str) -> Figure:
        return _first(self.figures, name=name)

    def value(self, name: str) -> float:
        """A figure's number. Raises KeyError."""
        return self.figure(name).value

    def gpu(self, name: str) -> Gpu:
        return _first(self.gpus, name=name)

    def instance(self, name: str) -> InstanceType:
        """The instance of this whole or short name. Raises KeyError."""
        whole = next((each.name for each in self.instances if each.short == name), name)
        return _first(self.instances, name=whole)

    def flops_of(self, model: str, resolution: int) -> Flops:
        """FLOPs of a model at any resolution. Of one that is not listed they follow from the three that are.

        FLOPs are a sum of terms that go by pixels (convolutions), by their square (attention), or by neither.
        Raises KeyError for an unknown model.
        """
        rows = [row for row in self.flops if row.model == model]
        if not rows or any(row.resolution == resolution for row in rows):
            return _first(self.flops, model=model, resolution=resolution)
        shares = {
            row: math.prod(
                (resolution**2 - other.resolution**2) / (row.resolution**2 - other.resolution**2)
                for other in rows
                if other is not row
            )
            for row in rows
        }
        gflop = {
            name: sum(getattr(row, name) * share for row, share in shares.items())
            for name in ("train_gflop", "vae_gflop", "text_gflop")
        }
        sides = ", ".join(str(row.resolution) for row in rows)
        source = f"from {sides} pixels, by pixels and their square"
        return Flops(model=model, resolution=resolution, source=source, mark=Evidence.CALCULATED, **gflop)

    def row_bytes_of(self, model: str, resolution: int) -> RowBytes:
        """Bytes of a sample at any resolution: latents and pictures go by pixels. Raises KeyError."""
        rows = [row for row in self.row_bytes if row.model == model]
        near = min(rows, key=lambda row: abs(math.log(row.resolution / resolution)), default=None)
        if near is None or near.resolution == resolution:
            return _first(self.row_bytes, model=model, resolution=resolution)
        more = (resolution / near.resolution) ** 2
        return replace(
            near,
            resolution=resolution,
            latent_bytes=round(near.latent_bytes * more),
            picture_bytes=round(near.picture_bytes * more),
        )

    def offer(self, instance: str, *, book: str, term: str) -> InstancePrice | None:
        """The offer of an instance in this book: in this term, or else an interruptible one."""
        found = {row.term: row for row in reversed(self.offers) if (row.instance, row.book) == (instance, book)}
        return found.get(term) or found.get(INTERRUPTIBLE)

    @property
    def books(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(offer.book for offer in self.offers))

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.model for row in self.flops))


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


@cache
def load_facts() -> Facts:
    return facts_of(_shipped("facts.toml") | _shipped("prices.toml"))


def facts_of(document: Mapping[str, Any]) -> Facts:
    """Build the facts from a parsed document. Raises ValueError for a row with a field too few or too many."""
    # Through JSON, in whose strict mode lists are tuples, and texts are days and members of an enumeration
    return TypeAdapter(Facts).validate_json(json.dumps(document, default=str))


def _shipped(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files("giornata.pretrain.planning").joinpath(name).read_text(encoding="utf-8"))


def _first(rows: tuple[T, ...], **wanted: object) -> T:
    """The first row with these values. Raises KeyError."""
    for row in rows:
        if all(getattr(row, name) == value for name, value in wanted.items()):
            return row
    raise KeyError(f"the facts have no row with {wanted}")
