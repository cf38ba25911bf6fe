"""One choice of trainers, encoders and mode: its speed, its encoders, its storage and its price.

offline    both towers before a phase; mean, logvar and text embeddings are stored
hybrid     the VAE before a phase; mean and logvar are stored, text is encoded beside the run
online     both towers beside the run
colocated  both towers on the trainers' own GPUs, before each step

    rate      = GPUs x peak x MFU / FLOPs of a picture, where nobody measured it
    hours     = sum over phases of samples / (images/s) / 3600
    dollars   = hours x (trainers n p + encoders m q) + precompute + storage
    encoders  = ceil(headroom x demand / (rate of one x availability))

MFU (model FLOPs utilization) is the share of a GPU's peak that the model's own FLOPs take, as in PaLM (Chowdhery et
al. 2022, appendix B). A rate that nobody published or measured is an estimate, and says so.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from giornata.pretrain.planning.facts import Evidence, Facts, Flops, InstancePrice, InstanceType, RowBytes
from giornata.pretrain.planning.request import SAME, PlanPhase, PlanRequest
from giornata.protocol.pretraining import BESIDE, Mode

HOUR_S = 3600
GB = 1e9
TERA_PER_GIGA = 1e-3
ROUNDING = 1e-9  # a quotient that is whole up to floating point is whole
NO_GPU = (
    "The run's trainers have no GPU (workers.use_gpu = false): how fast a processor trains is not known beforehand,"
    " so neither hours nor dollars are told. Set workers.use_gpu and workers.accelerator_type, or name clusters in a"
    ' file for --assume (trainers = ["1xp5.48xlarge"]), to see what it would take there.'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Images per second. `mfu` is a share of the peak; `basis` tells people how the rate is known."""

    images_per_s: float
    mfu: float
    estimated: bool
    basis: str


def rate_at(*, gpus: int, peak_tflops: float, mfu: float, gflop: float) -> float:
    """Images per second at a share `mfu` of the peak."""
    return gpus * peak_tflops * mfu / (gflop * TERA_PER_GIGA)


def mfu_of(*, images_per_s: float, gpus: int, peak_tflops: float, gflop: float) -> float:
    """The share of the peak that a rate amounts to."""
    return images_per_s * gflop * TERA_PER_GIGA / (gpus * peak_tflops)


def training_speed(facts: Facts, flops: Flops, *, gpu: str, gpus: int) -> Speed:
    """The known rate of these GPUs; else by the MFU of other numbers of this GPU; else by the guessed MFU.

    Raises KeyError for an unknown GPU.
    """
    peak = facts.gpu(gpu).peak_tflops
    same = [row for row in facts.training_rates if (row.model, row.gpu) == (flops.model, gpu)]
    known = [row for row in same if row.resolution == flops.resolution]
    if not known:
        return _guessed(facts.value("trainer_mfu"), gpus=gpus, peak_tflops=peak, gflop=flops.train_gflop)
    near = min(known, key=lambda row: abs(row.gpus - gpus))
    mfu = mfu_of(images_per_s=near.images_per_s, gpus=near.gpus, peak_tflops=peak, gflop=flops.train_gflop)
    if near.gpus == gpus:
        estimated, basis = near.mark is Evidence.GUESS, f"{near.mark}: {near.source}"
        return Speed(images_per_s=near.images_per_s, mfu=mfu, estimated=estimated, basis=basis)
    rate = rate_at(gpus=gpus, peak_tflops=peak, mfu=mfu, gflop=flops.train_gflop)
    basis = f"estimated: the MFU of {near.gpus} {gpu}, {mfu:.0%}"
    return Speed(images_per_s=rate, mfu=mfu, estimated=True, basis=basis)


def encoder_speed(facts: Facts, flops: Flops, *, gpu: str, gflop: float | None = None) -> Speed:
    """The rate of one GPU through both towers, or through a part of them that takes `gflop`.

    A rate of another resolution, or of both towers together, is carried over at equal FLOP/s: an estimate. Raises
    KeyError for an unknown GPU.
    """
    peak = facts.gpu(gpu).peak_tflops
    wanted = flops.encode_gflop if gflop is None else gflop
    same = [row for row in facts.encoder_rates if (row.model, row.gpu) == (flops.model, gpu)]
    if not same:
        return _guessed(facts.value("encoder_mfu"), gpus=1, peak_tflops=peak, gflop=wanted)
    row = min(same, key=lambda row: row.resolution != flops.resolution)
    there = facts.flops_of(row.model, row.resolution).encode_gflop
    mfu = mfu_of(images_per_s=row.images_per_s, gpus=1, peak_tflops=peak, gflop=there)
    exact = row.resolution == flops.resolution and wanted == there
    return Speed(
        images_per_s=row.images_per_s * there / wanted,
        mfu=mfu,
        estimated=not exact or row.mark is Evidence.GUESS,
        basis=f"{row.mark}: {row.source}" if exact else f"estimated: by FLOPs from {row.resolution} px on {gpu}",
    )


def _guessed(mfu: float, *, gpus: int, peak_tflops: float, gflop: float) -> Speed:
    rate = rate_at(gpus=gpus, peak_tflops=peak_tflops, mfu=mfu, gflop=gflop)
    return Speed(images_per_s=rate, mfu=mfu, estimated=True, basis=f"estimated: roofline at {mfu:.0%} MFU, a guess")


def colocated_rate(*, trainers_per_s: float, encoders_per_s: float) -> float:
    """Images per second when the same GPUs encode and train, one after the other: `1 / (1/T + 1/E)`.

    On the seed's table 1 at 256 px: 4068 with 32 x 291 gives 2832; it found 2811.
    """
    return 1 / (1 / trainers_per_s + 1 / encoders_per_s)


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
class PricedPhase:
    """Samples that the whole cluster trains at a rate, with `encoders` instances beside it."""

    samples: float
    images_per_s: float
    encoders: int = 0

    @property
    def hours(self) -> float:
        return self.samples / self.images_per_s / HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """Hours and dollars of a run by part. `gpu_hours` are those of the trainers."""

    training_hours: float
    encoding_hours: float
    gpu_hours: float
    trainer_usd: float
    encoder_usd: float
    precompute_usd: float
    storage_usd: float

    @property
    def hours(self) -> float:
        """Hours of the wall clock: encoding beforehand, then training."""
        return self.training_hours + self.encoding_hours

    @property
    def total_usd(self) -> float:
        return self.trainer_usd + self.encoder_usd + self.precompute_usd + self.storage_usd


def bill_of(
    phases: Sequence[PricedPhase],
    *,
    instances: int,
    gpus_each: int,
    usd_per_hour: float,
    encoder_usd_per_hour: float = 0.0,
    encoding_hours: float = 0.0,
    precompute_usd: float = 0.0,
    storage_usd: float = 0.0,
) -> CostEstimate:
    """The bill of phases that follow one another on `instances` at `usd_per_hour` each. `encoding_hours`, of the wall
    clock, and `precompute_usd` are of the encoding before them."""
    hours = sum(phase.hours for phase in phases)
    return CostEstimate(
        training_hours=hours,
        encoding_hours=encoding_hours,
        gpu_hours=hours * instances * gpus_each,
        trainer_usd=hours * instances * usd_per_hour,
        encoder_usd=sum(phase.hours * phase.encoders for phase in phases) * encoder_usd_per_hour,
        precompute_usd=precompute_usd,
        storage_usd=storage_usd,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineChoice:
    instances: int
    trainer: InstanceType
    trainer_offer: InstancePrice
    encoder: InstanceType
    encoder_offer: InstancePrice

    @property
    def gpus(self) -> int:
        return self.instances * self.trainer.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPhase(PricedPhase):
    """A phase under one choice. `images_per_s` is of the whole cluster.

    `training`: the trainers alone. `encoding`: one GPU, for what the mode encodes while it runs. `stored_bytes`: what
    is encoded before the phase; `read_bytes`: what the phase reads over all its samples, pictures for the encoding
    before it included. `fed_bytes_per_s`: from encoders to trainers. `micro_batch`: samples for each GPU in a step,
    over all accumulations.
    """

    resolution: int
    steps: int
    micro_batch: float
    training: Speed
    encoding: Speed
    encoding_hours: float
    precompute_usd: float
    stored_bytes: float
    read_bytes: float
    fed_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    mode: Mode
    machines: MachineChoice
    phases: tuple[ChosenPhase, ...]
    bill: CostEstimate

    @property
    def estimated(self) -> bool:
        """True when the time of training, the largest part of the bill, is an estimate. Colocated always is."""
        return self.mode is Mode.COLOCATED or any(phase.training.estimated for phase in self.phases)

    @property
    def stored_bytes(self) -> float:
        """Bytes that all phases store before they train."""
        return sum(phase.stored_bytes for phase in self.phases)

    @property
    def encodes_with_others(self) -> bool:
        """True when encoders have instances of their own."""
        return self.mode is not Mode.COLOCATED

    @property
    def name(self) -> str:
        """The name of the choice, such as `4xp4de.24xlarge online g5.2xlarge`."""
        beside = f" {self.machines.encoder.name}" if self.encodes_with_others else ""
        return f"{self.machines.instances}x{self.machines.trainer.name} {self.mode}{beside}"


def machines_of(request: PlanRequest, facts: Facts) -> Iterator[MachineChoice | str]:
    """Every pair of trainers and encoders that the price book can price; for the others a sentence why not."""
    if not request.priced and not request.trainers:
        yield NO_GPU
        return
    for text in request.trainers or facts.default_trainers:
        count, _, instance = text.partition("x")
        trainer = facts.instance(instance)
        offer = facts.offer(trainer.name, book=request.prices, term=request.trainer_term)
        if offer is None:
            yield _unpriced(text, trainer, request.prices, request.trainer_term)
            continue
        for name in dict.fromkeys(request.encoders or facts.default_encoders):
            encoder = trainer if name == SAME else facts.instance(name)
            encoder_offer = facts.offer(encoder.name, book=request.prices, term=request.encoder_term)
            if encoder_offer is None:
                yield _unpriced(f"encoders on {encoder.name}", encoder, request.prices, request.encoder_term)
                continue
            yield MachineChoice(
                instances=int(count),
                trainer=trainer,
                trainer_offer=offer,
                encoder=encoder,
                encoder_offer=encoder_offer,
            )


def _unpriced(what: str, instance: InstanceType, book: str, term: str) -> str:
    return f"{what} is left out: the price book {book} has no {term.replace('_', '-')} price of {instance.name}."


def choice_of(request: PlanRequest, facts: Facts, machines: MachineChoice, mode: Mode) -> Choice:
    """Price one choice. `facts` hold what the request brings (`with_given`). Raises KeyError for unknown names."""
    phases = tuple(_phase(request, facts, machines, mode, phase) for phase in request.phases)
    bill = bill_of(
        phases,
        instances=machines.instances,
        gpus_each=machines.trainer.gpus,
        usd_per_hour=machines.trainer_offer.usd_per_hour,
        encoder_usd_per_hour=machines.encoder_offer.usd_per_hour * request.availability,
        encoding_hours=sum(phase.encoding_hours for phase in phases),
        precompute_usd=sum(phase.precompute_usd for phase in phases),
        storage_usd=_storage_usd(request, facts, phases),
    )
    return Choice(mode=mode, machines=machines, phases=phases, bill=bill)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """The work of a mode for each picture: 10^9 FLOPs of encoding before a phase and while it trains, the bytes that
    are stored before it, and the bytes that encoders beside the run send."""

    before_gflop: float = 0.0
    while_gflop: float
    stored_bytes: int = 0
    fed_bytes: int = 0


def _work(mode: Mode, flops: Flops, sizes: RowBytes) -> _Work:
    vae, text, whole = flops.vae_gflop, flops.text_gflop, flops.encode_gflop
    moments, both = sizes.moments_bytes, sizes.moments_bytes + sizes.text_bytes
    return {
        Mode.OFFLINE: _Work(before_gflop=whole, while_gflop=whole, stored_bytes=both),
        Mode.HYBRID: _Work(before_gflop=vae, while_gflop=text, stored_bytes=moments, fed_bytes=sizes.text_bytes),
        Mode.ONLINE: _Work(while_gflop=whole, fed_bytes=both),
        Mode.COLOCATED: _Work(while_gflop=whole),
    }[mode]


def _phase(request: PlanRequest, facts: Facts, machines: MachineChoice, mode: Mode, phase: PlanPhase) -> ChosenPhase:
    flops = facts.flops_of(request.model, phase.resolution)
    sizes = facts.row_bytes_of(request.model, phase.resolution)
    work, rows = _work(mode, flops, sizes), request.rows(phase)
    training = training_speed(facts, flops, gpu=machines.trainer.gpu, gpus=machines.gpus)
    encoder = machines.trainer if mode is Mode.COLOCATED else machines.encoder
    encoding = encoder_speed(facts, flops, gpu=encoder.gpu, gflop=work.while_gflop)
    rate = training.images_per_s
    if mode is Mode.COLOCATED:
        rate = colocated_rate(trainers_per_s=rate, encoders_per_s=machines.gpus * encoding.images_per_s)
    one = encoding.images_per_s * machines.encoder.gpus
    encoders = encoders_for(rate, one, headroom=request.headroom, availability=request.availability)
    stored, pictures = rows * work.stored_bytes, rows * sizes.picture_bytes
    paid_hours, instances = _hours_before(facts, flops, work, machines, rows), request.encoding_instances
    if machines.encoder.name == machines.trainer.name:
        instances = machines.instances
    return ChosenPhase(
        resolution=phase.resolution,
        samples=phase.samples,
        steps=-(-phase.samples // phase.global_batch_size),
        micro_batch=phase.global_batch_size / machines.gpus,
        training=training,
        encoding=encoding,
        images_per_s=rate,
        encoders=encoders if mode in BESIDE else 0,
        # A machine that is away is not paid, and the others take longer.
        encoding_hours=paid_hours / (instances * request.availability),
        precompute_usd=paid_hours * machines.encoder_offer.usd_per_hour,
        stored_bytes=stored,
        read_bytes=phase.samples * work.stored_bytes + pictures if stored else phase.samples * sizes.picture_bytes,
        fed_bytes_per_s=rate * work.fed_bytes,
    )


def _hours_before(facts: Facts, flops: Flops, work: _Work, machines: MachineChoice, rows: int) -> float:
    """Hours of one encoding instance for all rows once, before the phase."""
    if not work.before_gflop:
        return 0.0
    speed = encoder_speed(facts, flops, gpu=machines.encoder.gpu, gflop=work.before_gflop)
    return rows / (speed.images_per_s * machines.encoder.gpus) / HOUR_S


def _storage_usd(request: PlanRequest, facts: Facts, phases: Sequence[ChosenPhase]) -> float:
    """Keeping the encoded rows for `storage_months`, and reading everything with its requests and traffic."""
    read, stored = sum(phase.read_bytes for phase in phases), sum(phase.stored_bytes for phase in phases)
    gets = read / facts.value("bytes_per_get") / 1000 * facts.value("get_usd_per_1000")
    kept = stored / GB * facts.value("storage_usd_per_gb_month") * request.storage_months
    return kept + gets + read / GB * facts.value("read_usd_per_gb")
