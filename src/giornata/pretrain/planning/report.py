"""A ranking for people, in sentences, and for programs, as plain values."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from giornata.pretrain.planning.facts import INTERRUPTIBLE, InstancePrice, InstanceType
from giornata.pretrain.planning.pricing import GB, Choice, encoder_speed
from giornata.pretrain.planning.ranking import Ranking, interruptible, mfu_to_beat, rows_that_decide
from giornata.protocol.pretraining import BESIDE, Mode

DAYS_PER_MONTH = 365 / 12
OLD_MONTHS = 4
"""Prices of GPUs move by a tenth and more in that time."""
COUNTS = {"million": 1e6, "thousand": 1e3}
ESTIMATED = "~"
"""Before a sum that rests on an estimated rate."""


def verdict(ranking: Ranking) -> list[str]:
    """The first sentences: the cheapest choice, by how much, and what decides that. Empty without prices."""
    best = ranking.best
    return [] if best is None else [_cheapest(ranking, best), *_rows(ranking)]


def _cheapest(ranking: Ranking, best: Choice) -> str:
    mine = ranking.configured
    if mine is best:
        return f"The run as configured is the cheapest: {_priced(best)}."
    said = f"The cheapest is {_priced(best)}."
    if mine is None:
        return said
    more, factor = mine.bill.total_usd - best.bill.total_usd, mine.bill.total_usd / best.bill.total_usd
    return f"{said} The run as configured, {_priced(mine)}, costs {usd(more)} more ({factor:.1f} times as much)."


def _priced(choice: Choice) -> str:
    paid = f"{ESTIMATED if choice.estimated else ''}{usd(choice.bill.total_usd)}"
    return f"{machines_words(choice)}, {choice.mode}: {paid} in {choice.bill.hours / 24:.1f} days"


def _rows(ranking: Ranking) -> Iterator[str]:
    found, request = rows_that_decide(ranking), ranking.request
    if found is None:
        return
    if request.dataset_rows is None:
        taken = "The plan takes every sample as a different row (1 use per row)"
    else:
        taken = (
            f"The plan takes {request.dataset_rows:,} ({request.samples / request.dataset_rows:,.1f} uses per row)"
        )
    uses, rows = request.samples / found.rows, in_units(found.rows, COUNTS, whole_from=100)
    yield (
        f"The number of different rows decides. {taken}. Below {rows} rows (more than"
        f" {uses:,.1f} uses per row) the cheapest is {machines_words(found.below)}, {found.below.mode}, which encodes"
        f" each row once and stores it. From there on it is {machines_words(found.above)}, {found.above.mode}."
    )


def reasons(ranking: Ranking) -> list[str]:
    """Sentences beside the verdict, the most important first. Empty when nothing could be priced."""
    best = ranking.best
    if best is None:
        return []
    return [
        *_configured(ranking),
        *_known(ranking, best),
        *_fastest(ranking, best),
        *_encoding(ranking),
        *_interruptible(ranking, best),
        *_pictures(ranking),
        *_old_prices(ranking),
        *ranking.request.notes,
    ]


def machines_words(choice: Choice) -> str:
    """Describe the trainers' GPUs and instances: `32 A100-80G (4 p4de)`."""
    machines = choice.machines
    return f"{machines.gpus} {machines.trainer.gpu} ({machines.instances} {machines.trainer.short})"


def usd(amount: float) -> str:
    return f"${amount:,.0f}"


def in_units(count: float, units: Mapping[str, float], *, whole_from: float = 10) -> str:
    """Format a number in the largest of these units, or else in the last, without a decimal from `whole_from` on."""
    unit, value = next((each for each in units.items() if count >= each[1]), list(units.items())[-1])
    return f"{count / value:,.{0 if count >= whole_from * value else 1}f} {unit}"


def large_bytes(count: float) -> str:
    """Format a number of bytes: `133 TB`, `5.7 MB`."""
    return in_units(count, {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3})


def _configured(ranking: Ranking) -> Iterator[str]:
    mine, asked = ranking.configured, ranking.request.configured
    if mine is None or asked is None or mine.mode not in BESIDE:
        return
    name, gpus = mine.machines.encoder.name, mine.machines.encoder.gpus
    for phase, there in zip(mine.phases, asked.encoders, strict=True):
        need = phase.encoders * gpus
        if there < need:
            yield (
                f"At {phase.resolution} pixels it has {there} encoders and needs {need} on {name}: set"
                " phases.encoders, or measure with `giornata pretrain run CONFIG --synthetic`."
            )


def _known(ranking: Ranking, best: Choice) -> Iterator[str]:
    known = ranking.best_known
    if not best.estimated:
        yield f"{machines_words(best)}: {best.phases[0].training.basis}."
        return
    yield f"{machines_words(best)}: {_basis(best)}. Measure before you rent."
    if known is None:
        return
    beat = mfu_to_beat(best, known.bill.total_usd)
    text = (
        f"The cheapest whose training rate is known is {machines_words(known)}, {known.mode}: "
        f"{usd(known.bill.total_usd)}"
    )
    slowed = " (encoding slowed alike)" if best.mode is Mode.COLOCATED else ""
    yield f"{text}." if beat is None else f"{text}; the first stays cheaper down to an MFU of {beat:.0%}{slowed}."


def _fastest(ranking: Ranking, best: Choice) -> Iterator[str]:
    fastest = min(ranking.choices, key=lambda choice: choice.bill.hours)
    if fastest.bill.hours < best.bill.hours:
        days = f"{fastest.bill.hours / 24:.1f} days, not {best.bill.hours / 24:.1f}"
        yield f"The fastest is {machines_words(fastest)}, {fastest.mode}: {days}, for {usd(fastest.bill.total_usd)}."


def _basis(choice: Choice) -> str:
    phase = choice.phases[0]
    if choice.mode is not Mode.COLOCATED:
        return phase.training.basis
    return f"training {phase.training.basis}; encoding {phase.encoding.basis}; one after the other: 1/(1/T + 1/E)"


def _encoding(ranking: Ranking) -> Iterator[str]:
    """The price of encoding on each machine of the book, which is why colocated or online may win."""
    request, facts = ranking.request, ranking.facts
    flops = facts.flops_of(request.model, request.phases[0].resolution)
    costs = []
    for offer in _offers(ranking):
        instance = facts.instance(offer.instance)
        images_per_s = encoder_speed(facts, flops, gpu=instance.gpu).images_per_s * instance.gpus
        taken = " (interruptible)" if offer.term == INTERRUPTIBLE else ""
        costs.append((offer.usd_per_hour / (images_per_s * 3600) * 1e6, f"{offer.instance}{taken}"))
    said = ", ".join(f"${million:,.2f} on {name}" for million, name in sorted(costs))
    yield f"To encode a million pictures of {flops.resolution} pixels costs {said}."


def _offers(ranking: Ranking) -> list[InstancePrice]:
    """Offers of the plan's book but the reserved ones; the request's own prices come first."""
    terms = {ranking.request.trainer_term, ranking.request.encoder_term, INTERRUPTIBLE}
    found: dict[tuple[str, str], InstancePrice] = {}
    for offer in ranking.facts.offers:
        if offer.book == ranking.request.prices and offer.term in terms:
            found.setdefault((offer.instance, offer.term), offer)
    return list(found.values())


def _interruptible(ranking: Ranking, best: Choice) -> Iterator[str]:
    if INTERRUPTIBLE in {best.machines.trainer_offer.term, ranking.request.trainer_term}:
        return
    taken = interruptible(ranking)
    if taken is not None and taken.best is not None:
        where = taken.best.machines.trainer_offer.provider
        yield f"On interruptible machines ({where}) the cheapest is {_priced(taken.best)}, if none is ever away."


def _old_prices(ranking: Ranking) -> Iterator[str]:
    if ranking.today is None:
        return
    first = ranking.today - timedelta(days=OLD_MONTHS * DAYS_PER_MONTH)
    old = sorted(
        {f"{each.instance} ({each.read_on})" for each in _offers(ranking) if each.read_on and each.read_on < first}
    )
    if old:
        yield (
            f"Prices older than {OLD_MONTHS} months: {', '.join(old)}. Ask the providers for today's, and give them"
            " in usd_per_hour of a file for --assume."
        )


def _pictures(ranking: Ranking) -> Iterator[str]:
    request, facts = ranking.request, ranking.facts
    largest = max(
        request.rows(phase) * facts.row_bytes_of(request.model, phase.resolution).picture_bytes
        for phase in request.phases
    )
    monthly = largest / GB * facts.value("storage_usd_per_gb_month")
    yield (
        f"Not in any total: the pictures themselves, about {large_bytes(largest)} (guessed), {usd(monthly)} a "
        "month in every mode; evaluation, failures and machines that stand idle."
    )


def ranking_told(ranking: Ranking) -> dict[str, Any]:
    """The whole ranking, cheapest first; sums in USD."""
    decisive = rows_that_decide(ranking)
    return {
        "name": ranking.request.name,
        "model": ranking.request.model,
        "samples": ranking.request.samples,
        "prices": ranking.request.prices,
        "rows": ranking.request.dataset_rows,
        "verdict": verdict(ranking),
        "rows_that_decide": decisive
        and {"rows": decisive.rows, "below": decisive.below.name, "above": decisive.above.name},
        "configured": ranking.configured and choice_told(ranking.configured),
        "choices": [choice_told(choice) for choice in ranking.choices],
        "reasons": reasons(ranking),
        "notes": list(ranking.request.notes),
        "left_out": list(ranking.left_out),
    }


def _rented(instance: InstanceType, offer: InstancePrice) -> dict[str, Any]:
    price = {"usd_per_hour": offer.usd_per_hour, "price": offer.basis}
    return {"instance": instance.name, "gpu": instance.gpu, **price}


def choice_told(choice: Choice) -> dict[str, Any]:
    machines, bill = choice.machines, choice.bill
    return {
        "mode": choice.mode.value,
        "trainers": {
            "instances": machines.instances,
            "gpus": machines.gpus,
            **_rented(machines.trainer, machines.trainer_offer),
        },
        "encoders": _rented(machines.encoder, machines.encoder_offer) if choice.encodes_with_others else None,
        "estimated": choice.estimated,
        "stored_bytes": choice.stored_bytes,
        **asdict(bill),
        "hours": bill.hours,
        "total_usd": bill.total_usd,
        "phases": [asdict(phase) | {"hours": phase.hours} for phase in choice.phases],
    }
