"""What is wrong with a request for a plan."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from giornata.domain.errors import Fault
from giornata.pretrain.planning.facts import Facts
from giornata.pretrain.planning.request import SAME, TERMS, TRAINERS, PlanRequest
from giornata.protocol.pretraining import Mode


def faults_of(request: PlanRequest, facts: Facts) -> list[Fault]:
    """Everything that is wrong with a request."""
    return [*_phase_faults(request, facts), *_machine_faults(request, facts), *_number_faults(request)]


def _phase_faults(request: PlanRequest, facts: Facts) -> Iterator[Fault]:
    if not request.phases:
        yield Fault(where="phases", message="there is none", hint="a plan needs at least one [[phases]]")
    given = {each.resolution for each in request.models}
    known = given | {row.resolution for row in facts.flops if row.model == request.model}
    if not known:
        hint = f"one of {', '.join(facts.models)}, or describe it in [[models]]"
        yield Fault(where="model", message=f"no FLOPs are known of {request.model!r}", hint=hint)
    for place, phase in enumerate(request.phases):
        where = f"phases.{place}"
        yield from _positive(
            {f"{where}.samples": phase.samples, f"{where}.global_batch_size": phase.global_batch_size}
        )
        if known and phase.resolution not in known:
            hint = f"known: {_listed(known)}; or describe it in [[models]]"
            message = f"no FLOPs are known of {request.model} at {phase.resolution} pixels"
            yield Fault(where=f"{where}.resolution", message=message, hint=hint)


def _machine_faults(request: PlanRequest, facts: Facts) -> Iterator[Fault]:
    hint = "such as 4xp4de.24xlarge"
    named = {f"encoders.{place}": name for place, name in enumerate(request.encoders) if name != SAME}
    named |= {f"usd_per_hour.{name}": name for name in request.usd_per_hour}
    for place, choice in enumerate(request.trainers):
        if found := TRAINERS.match(choice):
            named[f"trainers.{place}"] = found["instance"]
        else:
            yield Fault(where=f"trainers.{place}", message=f"cannot be {choice!r}", hint=hint)
    known = [each.name for each in facts.instances]
    also = {each.short for each in facts.instances} | {each.name for each in request.own}
    yield from _unknown("instance", named, known, also)
    rates = {f"rates.{place}.gpu": rate.gpu for place, rate in enumerate(request.rates)}
    rates |= {f"encoder_rates.{place}.gpu": rate.gpu for place, rate in enumerate(request.encoder_rates)}
    yield from _unknown("GPU", rates, [each.name for each in facts.gpus])
    yield from _unknown("price book", {"prices": request.prices}, facts.books)
    terms = {"trainer_term": request.trainer_term, "encoder_term": request.encoder_term}
    yield from _unknown("term", terms, TERMS)


def _unknown(
    kind: str, named: Mapping[str, str], known: Sequence[str], also: Collection[str] = ()
) -> Iterator[Fault]:
    for where, name in named.items():
        if name not in known and name not in also:
            yield Fault(where=where, message=f"no {kind} {name!r} is known", hint=f"one of {', '.join(known)}")


def _number_faults(request: PlanRequest) -> Iterator[Fault]:
    if not request.modes:
        yield Fault(where="modes", message="there is none", hint=f"any of {', '.join(Mode)}")
    rows = {} if request.dataset_rows is None else {"dataset_rows": request.dataset_rows}
    yield from _positive({**rows, "encoding_instances": request.encoding_instances})
    rates = [*enumerate(request.rates)]
    yield from _positive({f"rates.{place}.images_per_s": rate.images_per_s for place, rate in rates})
    yield from _positive({f"rates.{place}.gpus": rate.gpus for place, rate in rates})
    encoders = enumerate(request.encoder_rates)
    yield from _positive({f"encoder_rates.{place}.images_per_s": rate.images_per_s for place, rate in encoders})
    for place, model in enumerate(request.models):
        names = ("train_gflop", "vae_gflop", "text_gflop", "latent_bytes", "text_bytes", "picture_bytes")
        yield from _positive({f"models.{place}.{name}": getattr(model, name) for name in names})
    yield from _within("headroom", request.headroom, 1, 10)
    yield from _within("availability", request.availability, 0.01, 1)
    yield from _within("storage_months", request.storage_months, 0, 1200)
    yield from _within("trainer_mfu", request.trainer_mfu, 0.001, 1)
    yield from _within("storage_usd_per_gb_month", request.storage_usd_per_gb_month, 0, 1000)
    yield from _within("read_usd_per_gb", request.read_usd_per_gb, 0, 1000)
    for name, usd in request.usd_per_hour.items():
        yield from _within(f"usd_per_hour.{name}", usd, 0, 100_000)


def _positive(values: Mapping[str, float]) -> Iterator[Fault]:
    for where, value in values.items():
        if not (math.isfinite(value) and value > 0):
            yield Fault(where=where, message=f"cannot be {value:g}", hint="more than 0")


def _within(where: str, value: float | None, least: float, most: float) -> Iterator[Fault]:
    if value is not None and not least <= value <= most:
        yield Fault(where=where, message=f"cannot be {value:g}", hint=f"between {least:g} and {most:g}")


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))
