"""The tables of the seed and of mosaicml/diffusion beside what the same formulas give here."""

from collections.abc import Iterator
from dataclasses import dataclass

from giornata.pretrain.planning import cost
from giornata.pretrain.planning.facts import Facts, Figure, Flops, Mark, RowBytes
from giornata.pretrain.planning.roofline import colocated_rate, encoder_speed, mfu_of
from giornata.pretrain.planning.sizing import Demand, Supply, fed_share, size

MODEL = "sd2"
SAMPLES = {256: 1_126_400_000, 512: 1_740_800_000}
TRAINER, CHEAPER_TRAINER, ENCODER = "p4de.24xlarge", "p4d.24xlarge", "g5.2xlarge"
INSTANCES, CHEAPER_INSTANCES = 4, 2
SEED = "seed"
LAST_STEP = "+ torch.compile"
LEFT_OUT = "4, left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRow:
    """One figure, theirs and ours. `theirs` is None where they say nothing; `note` says what to make of it.

    `finding`: ours is not meant to be theirs.
    """

    table: str
    what: str
    unit: str
    ours: float
    theirs: float | None = None
    mark: Mark | None = None
    note: str = ""
    finding: bool = False

    @property
    def difference(self) -> float | None:
        """Ours over theirs, less one, where ours is to be theirs: not for what was found beside their tables."""
        return None if self.theirs is None or self.finding else self.ours / self.theirs - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A column of the seed's table 3: its images/s, and the share of the peak that they are."""

    table: str
    step: str
    gpus: int
    gpu: str
    rates: dict[int, float]
    mfus: dict[int, float]
    mark: Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """What `--paper --json` ends with."""

    table4_on_demand_usd: int
    table4_reserved_usd: int
    a100_hours: int
    encoders_256: int
    encoders_512: int


def paper(facts: Facts) -> list[PaperRow]:
    """Every row but those of table 3, table after table."""
    return [
        *table_1(facts),
        *table_2(facts),
        *table_4(facts),
        *left_out(facts),
        *encoders(facts),
        *mosaic(facts),
    ]


def headline(facts: Facts) -> Headline:
    """The figures that are compared to the dollar."""
    on_demand, reserved = table_4_bill(facts, "on_demand"), table_4_bill(facts, "reserved")
    return Headline(
        table4_on_demand_usd=round(on_demand.total_usd),
        table4_reserved_usd=round(reserved.total_usd),
        a100_hours=round(on_demand.gpu_hours),
        encoders_256=encoders_needed(facts, 256),
        encoders_512=encoders_needed(facts, 512),
    )


def _row(table: str, what: str, figure: Figure, ours: float, note: str = "", *, finding: bool = False) -> PaperRow:
    return PaperRow(
        table=table,
        what=what,
        unit=figure.unit,
        ours=ours,
        theirs=figure.value,
        mark=figure.mark,
        note=note,
        finding=finding,
    )


def _usd(facts: Facts, instance: str, term: str = "on_demand") -> float:
    offer = facts.offer(instance, book=SEED, term=term)
    if offer is None:
        raise KeyError(f"the seed's book has no {term} price of {instance}")
    return offer.usd_per_hour


def _trainers(facts: Facts, term: str = "on_demand") -> cost.Trainers:
    return cost.Trainers(instances=INSTANCES, gpus_each=8, usd_per_hour=_usd(facts, TRAINER, term))


def _flops(facts: Facts, resolution: int) -> Flops:
    return facts.flops_of(MODEL, resolution)


def table_1(facts: Facts) -> Iterator[PaperRow]:
    """Encoders on the trainers: our model of colocated against what the seed's loader did."""
    gpus = _trainers(facts).gpus
    for resolution, names in {256: ("",), 512: ("_by_table", "_by_text")}.items():
        one = encoder_speed(facts, _flops(facts, resolution), gpu="A100-80G").images_per_s
        ours = colocated_rate(trainers_per_s=facts.value(f"table1_offline_{resolution}"), encoders_per_s=gpus * one)
        for name in names:
            note = (
                f"its {name[4:]}; it contradicts itself"
                if name
                else "encoders on the trainers: 1/(1/T + 1/E), E from its figure 3"
            )
            what = f"loader, {resolution} px"
            yield _row("1", what, facts.figure(f"table1_loader_{resolution}{name}"), ours, note)


def table_2(facts: Facts) -> Iterator[PaperRow]:
    """Phase 1 in three modes, before FSDP and torch.compile."""
    samples = SAMPLES[256]
    precompute = cost.Precompute(usd=facts.value("table2_precompute_usd"))
    loader = cost.Phase(samples=samples, images_per_s=facts.value("table1_loader_256"))
    offline = cost.Phase(samples=samples, images_per_s=facts.value("table1_offline_256"))
    online = cost.Phase(
        samples=samples,
        images_per_s=facts.value("table2_online_rate"),
        encoders=int(facts.value("table2_online_encoders")),
    )
    bills = {
        "loader": cost.plan([loader], _trainers(facts)),
        "offline": cost.plan([offline], _trainers(facts), precompute=precompute),
        "online": cost.plan([online], _trainers(facts), encoder_usd_per_hour=_usd(facts, ENCODER)),
    }
    notes = {"loader": "encoders on the trainers", "offline": "with $2,183 to encode", "online": "40 g5.2xlarge"}
    for name, bill in bills.items():
        yield _row("2", f"{name}, hours", facts.figure(f"table2_{name}_hours"), bill.training_hours)
        yield _row("2", f"{name}, total", facts.figure(f"table2_{name}_usd"), bill.total_usd, notes[name])


def table_3(facts: Facts) -> Iterator[StepRow]:
    """What each step reaches of the peak; the seed does not say."""
    clusters = {"3a": ("A100-40G", 16), "3b": ("A100-80G", 32)}
    for step in facts.steps:
        gpu, gpus = clusters[step.table]
        peak = facts.gpu(gpu).peak_tflops
        rates = {256: step.rate_256, 512: step.rate_512}
        mfus = {
            px: mfu_of(images_per_s=rate, gpus=gpus, peak_tflops=peak, gflop=_flops(facts, px).train_gflop)
            for px, rate in rates.items()
        }
        yield StepRow(table=step.table, step=step.step, gpus=gpus, gpu=gpu, rates=rates, mfus=mfus, mark=step.mark)


def final_rates(facts: Facts, table: str) -> dict[int, float]:
    """Images per second of the last step, by resolution."""
    step = next(step for step in facts.steps if (step.table, step.step) == (table, LAST_STEP))
    return {256: step.rate_256, 512: step.rate_512}


def table_4_bill(facts: Facts, term: str) -> cost.Bill:
    """Both phases at the final rates, the UNet alone."""
    rates = final_rates(facts, "3b")
    phases = [cost.Phase(samples=SAMPLES[px], images_per_s=rate) for px, rate in rates.items()]
    return cost.plan(phases, _trainers(facts, term))


def table_4(facts: Facts) -> Iterator[PaperRow]:
    """To the dollar."""
    on_demand, reserved = table_4_bill(facts, "on_demand"), table_4_bill(facts, "reserved")
    note = "the UNet alone"
    yield _row("4", "GPU hours", facts.figure("table4_gpu_hours"), on_demand.gpu_hours)
    yield _row("4", "on demand", facts.figure("table4_on_demand_usd"), on_demand.total_usd, note)
    yield _row("4", "one-year terms", facts.figure("table4_reserved_usd"), reserved.total_usd, note)


def left_out(facts: Facts) -> Iterator[PaperRow]:
    """What a published price of $39,511 or $67,405 does not hold."""
    first, second = precompute_usd(facts, 256), precompute_usd(facts, 512)
    stated = facts.figure("table2_precompute_usd")
    note = f"by {_encoder_rate(facts, 256):.0f} images/s and ${_usd(facts, ENCODER)}/h"
    yield _row(LEFT_OUT, "encoding phase 1", stated, first, note, finding=True)
    yield PaperRow(table=LEFT_OUT, what="encoding phase 2", unit="USD", ours=second, note="likewise, by FLOPs")
    seconds = stated.value * second / first
    note = f"by FLOPs and samples, {second / first:.2f} x its $2,183"
    yield PaperRow(table=LEFT_OUT, what="encoding phase 2, at its price", unit="USD", ours=seconds, note=note)
    for term, words in (("on_demand", "on demand"), ("reserved", "one-year terms")):
        total = table_4_bill(facts, term).total_usd + stated.value + seconds
        note = "with both encodings, at its price"
        yield PaperRow(table=LEFT_OUT, what=f"without storage, {words}", unit="USD", ours=total, note=note)
    yield from _storage(facts)
    yield _cheaper_trainers(facts)


def _storage(facts: Facts) -> Iterator[PaperRow]:
    price = facts.value("storage_usd_per_gb_month")
    for place, px in enumerate(SAMPLES, start=1):
        row = facts.row_bytes_of(MODEL, px)
        count = SAMPLES[px] * (row.latent_bytes + row.text_bytes)
        note = f"{count / 1e12:,.0f} TB in fp16, {_text_share(row):.0%} text; its code writes twice that"
        what = f"a month of storage, phase {place}"
        yield PaperRow(table=LEFT_OUT, what=what, unit="USD", ours=count / cost.GB * price, note=note)


def _text_share(row: RowBytes) -> float:
    return row.text_bytes / (row.text_bytes + row.latent_bytes)


def _cheaper_trainers(facts: Facts) -> PaperRow:
    """The seed's own 16 A100-40G need fewer GPU hours than its 32 A100-80G."""
    rates = final_rates(facts, "3a")
    trainers = cost.Trainers(instances=CHEAPER_INSTANCES, gpus_each=8, usd_per_hour=_usd(facts, CHEAPER_TRAINER))
    phases = [cost.Phase(samples=SAMPLES[px], images_per_s=rate) for px, rate in rates.items()]
    bill = cost.plan(phases, trainers)
    note = f"table 3a: {bill.gpu_hours:,.0f} A100-h, {bill.hours / 24:.1f} days; price guessed"
    return PaperRow(table=LEFT_OUT, what="16 A100-40G instead", unit="USD", ours=bill.total_usd, note=note)


def precompute_usd(facts: Facts, resolution: int) -> float:
    """Encoding every sample of a phase once on the seed's encoders at their list price."""
    return SAMPLES[resolution] / _encoder_rate(facts, resolution) / cost.HOUR_S * _usd(facts, ENCODER)


def _encoder_rate(facts: Facts, resolution: int) -> float:
    return encoder_speed(facts, _flops(facts, resolution), gpu="A10G").images_per_s


def encoders_needed(facts: Facts, resolution: int) -> int:
    """Encoders without headroom that feed the seed's final rate."""
    demand = Demand(images_per_s=final_rates(facts, "3b")[resolution])
    return size(demand, Supply(encoder_images_per_s=_encoder_rate(facts, resolution)), headroom=1.0).encoders


def encoders(facts: Facts) -> Iterator[PaperRow]:
    """The seed's 40 encoders fed the trainers that it had then; they would hold back its final ones."""
    had = int(facts.value("table2_online_encoders"))
    for px, rate in final_rates(facts, "3b").items():
        supply = Supply(encoder_images_per_s=_encoder_rate(facts, px))
        share = fed_share(encoders=had, demand=Demand(images_per_s=rate), supply=supply)
        needed = encoders_needed(facts, px)
        idle = SAMPLES[px] / rate / cost.HOUR_S * (1 / share - 1) * INSTANCES * _usd(facts, TRAINER)
        note = f"with {had}: {share:.0%} of {rate:,.0f} images/s, ${idle:,.0f} of trainers idle"
        yield PaperRow(
            table="encoders",
            what=f"online at the final rate, {px} px",
            unit="g5.2xlarge",
            ours=needed,
            theirs=had,
            mark=Mark.PUBLISHED,
            note=note,
            finding=True,
        )


def mosaic(facts: Facts) -> Iterator[PaperRow]:
    """The same schedule at 2 USD per A100-hour."""
    price = facts.value("mosaic_usd_per_gpu_hour")
    for row in facts.mosaic:
        rates = {256: row.rate_256, 512: row.rate_512}
        phases = [cost.Phase(samples=SAMPLES[px], images_per_s=rate) for px, rate in rates.items()]
        bill = cost.plan(phases, cost.Trainers(instances=row.gpus, gpus_each=1, usd_per_hour=price))
        for what, unit, theirs, ours in (
            ("days", "days", row.days, bill.hours / 24),
            ("total", "USD", row.usd, bill.total_usd),
        ):
            yield PaperRow(
                table="mosaic", what=f"{row.gpus} A100, {what}", unit=unit, theirs=theirs, ours=ours, mark=row.mark
            )
    encoding = facts.value("mosaic_precompute_gpu_hours") * price
    yield PaperRow(table="mosaic", what="encoding, once", unit="USD", theirs=7600, ours=encoding, mark=Mark.PUBLISHED)
