"""One choice of trainers, encoders and mode: how fast, how many encoders, how much is stored, what it costs.

offline    both towers before a phase; mean, logvar and text embeddings are stored
hybrid     the VAE before a phase; mean and logvar are stored, text is encoded beside the run
online     both towers beside the run
colocated  both towers on the trainers' own GPUs, before each step
"""

from collections.abc import Iterator
from dataclasses import dataclass

from giornata.pretrain.planning import cost
from giornata.pretrain.planning.facts import Facts, Instance, Offer, RowBytes
from giornata.pretrain.planning.request import SAME, TRAINERS, PlanPhase, PlanRequest
from giornata.pretrain.planning.roofline import Speed, colocated_rate, encoder_speed, training_speed
from giornata.protocol.pretraining import BESIDE, Mode

"""Modes with encoders beside the run."""
NO_GPU = (
    "The run's trainers have no GPU (workers.use_gpu = false): how fast a processor trains is not known beforehand,"
    " so neither hours nor dollars are told. Set workers.use_gpu and workers.accelerator_type, or name clusters in a"
    ' file for --assume (trainers = ["1xp5.48xlarge"]), to see what it would take there.'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Trainers and encoders with what they cost."""

    instances: int
    trainer: Instance
    trainer_offer: Offer
    encoder: Instance
    encoder_offer: Offer

    @property
    def gpus(self) -> int:
        """That train."""
        return self.instances * self.trainer.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPhase:
    """A phase under one choice. `images_per_s` is of the whole cluster; `encoders` are instances beside the run.

    `training`: the trainers alone. `encoding`: one GPU, for what the mode encodes while it runs. `stored_bytes`: what
    is encoded before the phase; `read_bytes`: what the phase reads over all its samples, pictures for the encoding
    before it included. `fed_bytes_per_s`: from encoders to trainers. `micro_batch`: samples for each GPU in a step,
    over all accumulations.
    """

    resolution: int
    samples: int
    steps: int
    micro_batch: float
    training: Speed
    encoding: Speed
    images_per_s: float
    hours: float
    encoders: int
    encoding_hours: float
    precompute_usd: float
    stored_bytes: float
    read_bytes: float
    fed_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A choice, priced."""

    mode: Mode
    machines: Machines
    phases: tuple[ChosenPhase, ...]
    bill: cost.Bill

    @property
    def estimated(self) -> bool:
        """Whether the time of training, the largest part of the bill, is an estimate. Colocated always is."""
        return self.mode is Mode.COLOCATED or any(phase.training.estimated for phase in self.phases)

    @property
    def stored_bytes(self) -> float:
        """Of all phases."""
        return sum(phase.stored_bytes for phase in self.phases)

    @property
    def encodes_with_others(self) -> bool:
        """Whether encoders have instances of their own."""
        return self.mode is not Mode.COLOCATED

    @property
    def name(self) -> str:
        """`4xp4de.24xlarge online g5.2xlarge`."""
        beside = f" {self.machines.encoder.name}" if self.encodes_with_others else ""
        return f"{self.machines.instances}x{self.machines.trainer.name} {self.mode}{beside}"


def machines_of(request: PlanRequest, facts: Facts) -> Iterator[Machines | str]:
    """Every pair of trainers and encoders that the price book can price; for the others, why not."""
    if not request.priced and not request.trainers:
        yield NO_GPU
        return
    for text in request.trainers or facts.default_trainers:
        found = TRAINERS.match(text)
        if found is None:
            raise ValueError(f"{text!r} is not a choice of trainers")
        trainer = facts.instance(found["instance"])
        offer = facts.offer(trainer.name, book=request.prices, term=request.trainer_term)
        if offer is None:
            yield _unpriced(text, trainer, request.prices, request.trainer_term)
            continue
        yield from _with_encoders(request, facts, int(found["count"]), trainer, offer)


def _with_encoders(
    request: PlanRequest, facts: Facts, instances: int, trainer: Instance, trainer_offer: Offer
) -> Iterator[Machines | str]:
    for name in dict.fromkeys(request.encoders or facts.default_encoders):
        encoder = trainer if name == SAME else facts.instance(name)
        encoder_offer = facts.offer(encoder.name, book=request.prices, term=request.encoder_term)
        if encoder_offer is None:
            yield _unpriced(f"encoders on {encoder.name}", encoder, request.prices, request.encoder_term)
            continue
        yield Machines(
            instances=instances,
            trainer=trainer,
            trainer_offer=trainer_offer,
            encoder=encoder,
            encoder_offer=encoder_offer,
        )


def _unpriced(what: str, instance: Instance, book: str, term: str) -> str:
    return f"{what} is left out: the price book {book} has no {term.replace('_', '-')} price of {instance.name}."


def choice_of(request: PlanRequest, facts: Facts, machines: Machines, mode: Mode) -> Choice:
    """Price one choice. `facts` hold what the request brings (`with_given`). Raises KeyError for unknown names."""
    phases = tuple(_phase(request, facts, machines, mode, phase) for phase in request.phases)
    trainers = cost.Trainers(
        instances=machines.instances,
        gpus_each=machines.trainer.gpus,
        usd_per_hour=machines.trainer_offer.usd_per_hour,
    )
    bill = cost.plan(
        [cost.Phase(samples=p.samples, images_per_s=p.images_per_s, encoders=p.encoders) for p in phases],
        trainers,
        encoder_usd_per_hour=machines.encoder_offer.usd_per_hour * request.availability,
        precompute=cost.Precompute(
            hours=sum(phase.encoding_hours for phase in phases), usd=sum(phase.precompute_usd for phase in phases)
        ),
        storage=_storage(request, facts, phases),
    )
    return Choice(mode=mode, machines=machines, phases=phases, bill=bill)


def _phase(request: PlanRequest, facts: Facts, machines: Machines, mode: Mode, phase: PlanPhase) -> ChosenPhase:
    sizes = facts.row_bytes_of(request.model, phase.resolution)
    training, encoding, rate = _speeds(request, facts, machines, mode, phase)
    one = encoding.images_per_s * machines.encoder.gpus
    fed = {Mode.HYBRID: sizes.text_bytes, Mode.ONLINE: sizes.moments_bytes + sizes.text_bytes}.get(mode, 0)
    encoders = cost.encoders_for(rate, one, headroom=request.headroom, availability=request.availability)
    stored_each = _stored_bytes(sizes, mode)
    stored, pictures = request.rows(phase) * stored_each, request.rows(phase) * sizes.picture_bytes
    before = _before(request, facts, machines, mode, phase)
    return ChosenPhase(
        resolution=phase.resolution,
        samples=phase.samples,
        steps=-(-phase.samples // phase.global_batch_size),
        micro_batch=phase.global_batch_size / machines.gpus,
        training=training,
        encoding=encoding,
        images_per_s=rate,
        hours=phase.samples / rate / cost.HOUR_S,
        encoders=encoders if mode in BESIDE else 0,
        encoding_hours=before.hours,
        precompute_usd=before.usd,
        stored_bytes=stored,
        read_bytes=phase.samples * stored_each + pictures if stored else phase.samples * sizes.picture_bytes,
        fed_bytes_per_s=rate * fed,
    )


def _speeds(
    request: PlanRequest, facts: Facts, machines: Machines, mode: Mode, phase: PlanPhase
) -> tuple[Speed, Speed, float]:
    """Of the trainers alone, of one encoding GPU for what the mode encodes, and of the whole, in images/s."""
    flops = facts.flops_of(request.model, phase.resolution)
    training = training_speed(facts, flops, gpu=machines.trainer.gpu, gpus=machines.gpus)
    if mode is not Mode.COLOCATED:
        part = flops.text_gflop if mode is Mode.HYBRID else None
        encoding = encoder_speed(facts, flops, gpu=machines.encoder.gpu, gflop=part)
        return training, encoding, training.images_per_s
    encoding = encoder_speed(facts, flops, gpu=machines.trainer.gpu)
    together = machines.gpus * encoding.images_per_s
    return training, encoding, colocated_rate(trainers_per_s=training.images_per_s, encoders_per_s=together)


def _stored_bytes(sizes: RowBytes, mode: Mode) -> int:
    stored = {Mode.OFFLINE: sizes.moments_bytes + sizes.text_bytes, Mode.HYBRID: sizes.moments_bytes}
    return stored.get(mode, 0)


def _before(request: PlanRequest, facts: Facts, machines: Machines, mode: Mode, phase: PlanPhase) -> cost.Precompute:
    """Encoding all rows of a phase once, on the trainers' instances or on as many others as the request says.

    A machine that is away is not paid, and the others take longer.
    """
    flops = facts.flops_of(request.model, phase.resolution)
    part = {Mode.OFFLINE: flops.encode_gflop, Mode.HYBRID: flops.vae_gflop}.get(mode)
    if part is None:
        return cost.NO_PRECOMPUTE
    speed = encoder_speed(facts, flops, gpu=machines.encoder.gpu, gflop=part)
    paid_hours = request.rows(phase) / (speed.images_per_s * machines.encoder.gpus) / cost.HOUR_S
    same = machines.encoder.name == machines.trainer.name
    instances = machines.instances if same else request.encoding_instances
    hours = paid_hours / (instances * request.availability)
    return cost.Precompute(hours=hours, usd=paid_hours * machines.encoder_offer.usd_per_hour)


def _storage(request: PlanRequest, facts: Facts, phases: tuple[ChosenPhase, ...]) -> cost.Storage:
    read = sum(phase.read_bytes for phase in phases)
    gets = read / facts.value("bytes_per_get") / 1000 * facts.value("get_usd_per_1000")
    return cost.Storage(
        stored_bytes=sum(phase.stored_bytes for phase in phases),
        months=request.storage_months,
        usd_per_gb_month=facts.value("storage_usd_per_gb_month"),
        traffic_usd=gets + read / cost.GB * facts.value("read_usd_per_gb"),
    )
