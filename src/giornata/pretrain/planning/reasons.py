"""Why choices rank as they do, in words."""

from collections.abc import Iterator

from giornata.pretrain.planning.choices import Choice
from giornata.pretrain.planning.cost import GB
from giornata.pretrain.planning.ranking import Ranking, mfu_to_beat, online_against_offline
from giornata.protocol.pretraining import BESIDE, Mode

DAYS_PER_MONTH = 365 / 12


def reasons(ranking: Ranking) -> list[str]:
    """Sentences, the most important first. Empty when nothing could be priced."""
    best = ranking.best
    if best is None:
        return []
    return [
        *_configured(ranking, best),
        *_known(ranking, best),
        *_fastest(ranking, best),
        *_modes(ranking, best),
        *_stored(ranking, best),
        *_break_even(ranking, best),
        *_pictures(ranking),
        *_batches(best),
        *ranking.request.notes,
    ]


def machines_words(choice: Choice) -> str:
    """`32 A100-80G (4 p4de)`."""
    machines = choice.machines
    return f"{machines.gpus} {machines.trainer.gpu} ({machines.instances} {machines.trainer.short})"


def usd(amount: float) -> str:
    """Whole dollars."""
    return f"${amount:,.0f}"


def large_bytes(count: float) -> str:
    """`133 TB`, `5.7 MB`."""
    for unit, value in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= value:
            return f"{count / value:,.0f} {unit}" if count >= 10 * value else f"{count / value:,.1f} {unit}"
    return f"{count / 1e3:,.1f} kB"


def _configured(ranking: Ranking, best: Choice) -> Iterator[str]:
    mine, asked = ranking.configured, ranking.request.configured
    if mine is None or asked is None:
        return
    cheapest = ", the cheapest of all" if mine is best else ""
    days = f"{mine.bill.hours / 24:.1f} days"
    paid = usd(mine.bill.total_usd)
    yield f"As the run is configured, {machines_words(mine)}, {mine.mode}: {paid} in {days}{cheapest}."
    if mine.mode not in BESIDE:
        return
    name, gpus = mine.machines.encoder.name, mine.machines.encoder.gpus
    for phase, there in zip(mine.phases, asked.encoders, strict=True):
        need = phase.encoders * gpus
        if there < need:
            yield (
                f"At {phase.resolution} pixels it has {there} encoders and needs {need} on {name}: set"
                " phases.encoders, or measure with `giornata pretrain size`."
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


def _modes(ranking: Ranking, best: Choice) -> Iterator[str]:
    for mode, other in ranking.beside(best).items():
        if mode is best.mode:
            continue
        more = other.bill.total_usd - best.bill.total_usd
        yield f"On the same trainers, {mode} costs {usd(more)} more: {_parts(other, best)}."


def _parts(other: Choice, best: Choice) -> str:
    """What is dearer and what cheaper."""
    parts = {
        "training": other.bill.trainer_usd - best.bill.trainer_usd,
        "encoders beside it": other.bill.encoder_usd - best.bill.encoder_usd,
        "encoding before": other.bill.precompute_usd - best.bill.precompute_usd,
        "storage and reading": other.bill.storage_usd - best.bill.storage_usd,
    }
    said = [f"{name} {'+' if more > 0 else '−'}{usd(abs(more))}" for name, more in parts.items() if abs(more) >= 1]
    return ", ".join(said) or "the parts are the same"


def _stored(ranking: Ranking, best: Choice) -> Iterator[str]:
    modes = ranking.beside(best)
    stored = {mode: choice.stored_bytes for mode, choice in modes.items() if choice.stored_bytes}
    if not stored:
        return
    price = ranking.facts.value("storage_usd_per_gb_month")
    said = [f"{mode} {large_bytes(count)} ({usd(count / GB * price)} a month)" for mode, count in stored.items()]
    yield f"Stored before training: {', '.join(said)}."


def _break_even(ranking: Ranking, best: Choice) -> Iterator[str]:
    found = online_against_offline(ranking, best)
    if found is None:
        return
    months = ranking.request.storage_months
    held = f"with {months:g} month{'' if months == 1 else 's'} of storage"
    after = f"Offline beats online from {found.passes:.1f} passes over the rows on, {held}"
    if found.months is None:
        yield f"{after}."
    elif (days := found.months * DAYS_PER_MONTH) < 1:
        yield f"{after}; in a single pass it saves nothing that could pay for storage."
    else:
        yield f"{after}; in a single pass, if the store is gone within {days:.0f} days."


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


def _batches(best: Choice) -> Iterator[str]:
    for phase in best.phases:
        if phase.micro_batch % 1:
            yield (
                f"At {phase.resolution} pixels a batch does not divide by {best.machines.gpus} GPUs: "
                f"{phase.micro_batch:.2f} each."
            )
    if best.mode in BESIDE:
        most = max(phase.fed_bytes_per_s for phase in best.phases)
        yield f"Encoders send trainers up to {most / GB:.2f} GB/s."
