"""A request from a run's configuration, or from plain values: checked whole, all faults at once.

What only a plan asks (clusters and prices that are compared, rates, months of storage) stands in a file of its own,
so that a run's file says nothing that the run does not read.
"""

import json
import math
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from giornata.domain.errors import Fault, InvalidInput, collecting
from giornata.pretrain.planning.facts import Facts, load_facts
from giornata.pretrain.planning.of_run import Found, rows_found, schedule_of, values_of_run
from giornata.pretrain.planning.request import OF_THE_RUN, SAME, TERMS, TRAINERS, PlanRequest
from giornata.pretrain.recipes import RECIPES, read_config
from giornata.protocol.pretraining import Mode, PretrainConfig

ASSUMED = tuple(each.name for each in fields(PlanRequest) if each.name not in OF_THE_RUN)
"""What may stand in a file for `--assume`."""


def request_named(config: str, facts: Facts | None = None, *, assume: Path | None = None) -> PlanRequest:
    """Of a run's recipe or TOML file, as `giornata pretrain run` reads it, and of what is assumed beside it.

    Raises InvalidInput with all faults of both.
    """
    if config not in RECIPES and not Path(config).exists():
        hint = f"recipes: {', '.join(RECIPES)}"
        raise InvalidInput([Fault(where="CONFIG", message=f"{config} is neither a recipe nor a file", hint=hint)])
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
    """What a run's configuration asks for, in its mode and in the others; `assumed` are fields of PlanRequest.

    Of a configuration whose trainers have no GPU only FLOPs and storage are told, unless `trainers` are assumed.
    Raises InvalidInput with all faults.
    """
    known = facts or load_facts()
    rows = Found(fields={}) if "dataset_rows" in assumed else rows_found(config)
    values = values_of_run(config, known, rows)
    if assumed.get("trainers"):
        values["priced"] = True
        values["configured"] |= {"trainers": None}
    return request_of(values | assumed, known)


def request_of(values: Mapping[str, Any], facts: Facts | None = None) -> PlanRequest:
    """A request from plain values, such as `{"phases": [{"samples": 10**8, "resolution": 256, ...}]}`.

    `recipe = "sd2_base"` begins with that schedule and changes what is given beside it.
    Raises InvalidInput with all faults, each with its field.
    """
    given = dict(values)
    if (recipe := given.pop("recipe", None)) is not None:
        if recipe not in RECIPES:
            hint = f"one of {', '.join(RECIPES)}"
            raise InvalidInput([Fault(where="recipe", message=f"there is no recipe {recipe!r}", hint=hint)])
        given = schedule_of(RECIPES[recipe]()) | given
    try:
        # Through JSON, in whose strict mode lists are tuples and names are members of an enumeration
        request = TypeAdapter(PlanRequest).validate_json(json.dumps(given, default=str))
    except ValidationError as error:
        raise InvalidInput(
            Fault(where=".".join(str(part) for part in one["loc"]) or "config", message=one["msg"])
            for one in error.errors(include_url=False)
        ) from None
    if faults := faults_of(request, facts or load_facts()):
        raise InvalidInput(faults)
    return request


def _assumed(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput([Fault(where=str(path), message=f"cannot be read: {error.strerror}")]) from None
    except ValueError as error:
        raise InvalidInput([Fault(where=str(path), message=f"is not TOML: {error}")]) from None
    unknown = [name for name in values if name not in ASSUMED]
    if unknown:
        raise InvalidInput(
            Fault(
                where=f"{path}: {name}",
                message="is the run's own" if name in OF_THE_RUN else "is nothing that a plan assumes",
                hint=f"one of {', '.join(ASSUMED)}",
            )
            for name in unknown
        )
    return values


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
