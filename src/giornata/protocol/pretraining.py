"""What somebody asks of a pre-training run: the whole of its configuration, checked at once.

The names are those of diffusers' training scripts. Sizes are (height, width) in pixels. A configuration is a TOML
file, a recipe (giornata.pretrain.recipes) or the spec of a `pretrain` job; all three pass through `parse`.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from giornata.domain.errors import Fault, InvalidInput

FORBID = ConfigDict(extra="forbid")
LATENT_SIDE_PX = 8
"""Pixels of a side for each of a latent's."""
MOST_HASH_DISTANCE = 16


class Mode(StrEnum):
    """Where pictures and captions are encoded."""

    OFFLINE = "offline"  # before the run: latents and text embeddings are read
    HYBRID = "hybrid"  # latents before the run, text beside it
    ONLINE = "online"  # both beside the run, by actors that stream to the trainers
    COLOCATED = "colocated"  # both by the trainers themselves: what the others are compared with


class Architecture(StrEnum):
    """Which model is made."""

    SD2 = "sd2"  # Stable Diffusion 2's UNet, with OpenCLIP ViT-H's text encoder
    SDXL_TINY = "sdxl-tiny"  # the tests' SDXL: everything in it, nothing in size
    SHAPES = "shapes"  # the small SDXL that draws shapes


class Parallel(StrEnum):
    """How the model is spread over the trainers."""

    DDP = "ddp"
    FSDP2 = "fsdp2"  # parameters stay gathered after the forward pass: only gradients and moments are sharded
    HSDP = "hsdp"  # FSDP2 within a node, replicas over nodes


class Precision(StrEnum):
    """Of the forward pass. Weights, moments and averages are float32."""

    NO = "no"
    BF16 = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    """What of a source is kept. A picture that is kept out goes to quarantine with the reason."""

    __pydantic_config__ = FORBID

    image_column: str = "jpg"
    caption_columns: tuple[str, ...] = ("caption",)
    min_side_px: int = 64
    max_aspect_ratio: float = 4.0
    min_caption_chars: int = 1
    rows_per_shard: int = 1000
    dedupe_hash_distance: int | None = None
    """Pictures whose perceptual hashes differ in at most this many of 64 bits are one; None: only equal bytes are."""
    max_quarantined_share: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The normalised shards, and how pictures are cut out of them."""

    __pydantic_config__ = FORBID

    shards: str
    """Folder or s3:// address that `giornata pretrain ingest` wrote."""
    enable_bucket: bool = False
    bucket_reso_steps: int = 64
    center_crop: bool = True
    random_flip: bool = False
    max_quarantined_share: float = 0.001
    """More rows than this that cannot be read although they were ingested stop the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is trained, and the frozen parts that it is trained with."""

    __pydantic_config__ = FORBID

    architecture: Architecture
    pretrained_model_name_or_path: str | None = None
    """Where VAE, tokenizers and text encoders are: a hub id or a folder. None: those of the package (shapes), or made
    from the seed (sdxl-tiny)."""
    prediction_type: str = "epsilon"
    random_encoders: bool = False
    """Frozen parts of the right size with random weights: for measuring speed only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encode:
    """Where the encoders work and how many there are."""

    __pydantic_config__ = FORBID

    mode: Mode = Mode.OFFLINE
    latents: str | None = None
    """Folder or address of encoded shards; None: `latents` under the run's storage."""
    store_text: bool = True
    """Offline: text embeddings are stored beside the latents. HYBRID needs none."""
    encode_batch_size: int = 16
    encoders: int = 1
    """Actors, fixed for a phase (see giornata.pretrain.planning for how many are needed)."""
    accelerator_type: str | None = None
    """Of the encoders' nodes, in Ray's terms ("A10G"); None: any."""
    gpus_per_encoder: float | None = None
    """A share lets encoders and trainers work on one GPU; None: one for each where there are GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of the schedule with one resolution. `samples` counts pictures, repeats included."""

    __pydantic_config__ = FORBID

    name: str
    resolution: int
    samples: int
    learning_rate: float = 1e-4
    lr_warmup_steps: int = 0
    train_batch_size: int | None = None
    """Pictures at once on one device; None: as many as fit, found by trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """The loop. One step takes `global_batch_size` pictures, however many trainers there are."""

    __pydantic_config__ = FORBID

    global_batch_size: int
    parallel: Parallel = Parallel.DDP
    mixed_precision: Precision = Precision.NO
    torch_compile: bool = False
    channels_last: bool = False
    gradient_checkpointing: bool = False
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_weight_decay: float = 0.01
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    snr_gamma: float | None = None
    proportion_empty_prompts: float = 0.1
    use_ema: bool = True
    ema_decay: float = 0.9999
    ema_start_samples: int = 0
    """The average begins when this many pictures of the whole schedule were trained."""
    token_routing: float = 0.0
    """Share of image tokens that take the short way through the middle of the UNet while training; 0: none."""
    max_loss_ratio: float = 10.0
    """A step whose loss is this many times the running median, or not a number, is left out and counted."""
    max_bad_steps: int = 10
    """So many left-out steps in a row end the run."""
    checkpoint_steps: int = 500
    checkpoints_total_limit: int = 3
    validation_steps: int = 0
    validation_rows: int = 0
    """So many rows, chosen by their key, are never trained and give the validation loss."""
    validation_prompts: tuple[str, ...] = ()
    pinned_order: bool = False
    """Every step takes the same pictures in every run with as many trainers: slower, for exact comparisons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The trainers. Between `min_trainers` and `trainers` the run goes on with what there is."""

    __pydantic_config__ = FORBID

    trainers: int = 1
    min_trainers: int | None = None
    use_gpu: bool = True
    accelerator_type: str | None = None
    max_failures: int = -1
    """Restarts after a crash; -1: without end. Preemptions are not counted."""
    trainer_usd_per_h: float | None = None
    """Of one trainer's device; with `encoder_usd_per_h` it tells what was spent so far."""
    encoder_usd_per_h: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking:
    """Where metrics go beside the run's own files."""

    __pydantic_config__ = FORBID

    tensorboard: bool = False
    wandb_project: str | None = None
    trace_rows: bool = False
    """Every trainer writes down which rows each step took (giornata.pretrain.trace): for proofs. Needs a folder as
    storage that all trainers share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainConfig:
    """A whole run. `storage` (folder or s3:// address) holds checkpoints, samples and metrics under `name`."""

    __pydantic_config__ = FORBID

    name: str
    storage: str
    data: Data
    model: Model
    train: Train
    phases: tuple[Phase, ...]
    seed: int = 0
    ingest: Ingest = field(default_factory=Ingest)
    encode: Encode = field(default_factory=Encode)
    workers: Workers = field(default_factory=Workers)
    tracking: Tracking = field(default_factory=Tracking)

    def to_json(self) -> dict[str, Any]:
        """As `parse` takes it."""
        return asdict(self)

    @property
    def samples(self) -> int:
        """Pictures of the whole schedule, repeats included."""
        return sum(phase.samples for phase in self.phases)


def load(path: Path) -> PretrainConfig:
    """The configuration in a TOML file. Raises InvalidInput with all faults, each with its field."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput([Fault(where=str(path), message=f"cannot be read: {error.strerror}")]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput([Fault(where=str(path), message=f"is not TOML: {error}")]) from None
    return parse(values)


def parse(values: Mapping[str, Any]) -> PretrainConfig:
    """The configuration in these values. Raises InvalidInput with all faults, each with its field."""
    try:
        config = TypeAdapter(PretrainConfig).validate_python(dict(values))
    except ValidationError as error:
        raise InvalidInput(_told(error)) from None
    if faults := config_faults(config):
        raise InvalidInput(faults)
    return config


def parse_ingest(values: Mapping[str, Any]) -> Ingest:
    """The options of an ingest alone. Raises InvalidInput with all faults, each with its field."""
    try:
        options = TypeAdapter(Ingest).validate_python(dict(values))
    except ValidationError as error:
        raise InvalidInput(_told(error, under="ingest")) from None
    if faults := _ingest_faults(options):
        raise InvalidInput(faults)
    return options


def _told(error: ValidationError, *, under: str = "") -> list[Fault]:
    return [
        Fault(
            where=".".join(str(part) for part in (under, *one["loc"]) if part != "") or "config", message=one["msg"]
        )
        for one in error.errors(include_url=False)
    ]


def config_faults(config: PretrainConfig) -> list[Fault]:
    """What types cannot say."""
    return [
        *_named(config),
        *_ingest_faults(config.ingest),
        *_phase_faults(config),
        *_train_faults(config),
        *_worker_faults(config),
        *_bucket_faults(config),
    ]


def _named(config: PretrainConfig) -> list[Fault]:
    plain = config.name and all(letter.isalnum() or letter in "-_." for letter in config.name)
    if plain and not config.name.startswith("."):
        return []
    return [Fault(where="name", message=f"{config.name!r} cannot name a folder", hint="letters, digits, - _ .")]


def _ingest_faults(ingest: Ingest) -> list[Fault]:
    return [
        *_at_least("ingest.min_side_px", ingest.min_side_px, 1),
        *_at_least("ingest.rows_per_shard", ingest.rows_per_shard, 1),
        *_at_least("ingest.min_caption_chars", ingest.min_caption_chars, 0),
        *_at_least("ingest.max_aspect_ratio", ingest.max_aspect_ratio, 1),
        *_share("ingest.max_quarantined_share", ingest.max_quarantined_share),
        *_hash_distance(ingest.dedupe_hash_distance),
        *([] if ingest.caption_columns else [Fault(where="ingest.caption_columns", message="names no column")]),
    ]


def _hash_distance(bits: int | None) -> list[Fault]:
    if bits is None or 0 <= bits <= MOST_HASH_DISTANCE:
        return []
    hint = f"0 to {MOST_HASH_DISTANCE}; unlike pictures differ in about 32"
    return [Fault(where="ingest.dedupe_hash_distance", message=f"cannot be {bits}", hint=hint)]


def _phase_faults(config: PretrainConfig) -> list[Fault]:
    if not config.phases:
        return [Fault(where="phases", message="there is none", hint="a run needs at least one [[phases]]")]
    faults = []
    names = [phase.name for phase in config.phases]
    for place, phase in enumerate(config.phases):
        where = f"phases.{place}"
        faults += _at_least(f"{where}.samples", phase.samples, 1)
        faults += _positive(f"{where}.learning_rate", phase.learning_rate)
        faults += _at_least(f"{where}.lr_warmup_steps", phase.lr_warmup_steps, 0)
        if phase.resolution < 1 or phase.resolution % LATENT_SIDE_PX:
            hint = f"a multiple of {LATENT_SIDE_PX}"
            faults.append(Fault(where=f"{where}.resolution", message=f"cannot be {phase.resolution}", hint=hint))
        if phase.train_batch_size is not None:
            faults += _at_least(f"{where}.train_batch_size", phase.train_batch_size, 1)
        if names.index(phase.name) != place:
            faults.append(Fault(where=f"{where}.name", message=f"{phase.name!r} names another phase too"))
    return faults


def _train_faults(config: PretrainConfig) -> list[Fault]:
    train = config.train
    faults = [
        *_at_least("train.global_batch_size", train.global_batch_size, 1),
        *_at_least("train.checkpoint_steps", train.checkpoint_steps, 1),
        *_at_least("train.checkpoints_total_limit", train.checkpoints_total_limit, 1),
        *_at_least("train.validation_steps", train.validation_steps, 0),
        *_at_least("train.validation_rows", train.validation_rows, 0),
        *_at_least("train.ema_start_samples", train.ema_start_samples, 0),
        *_at_least("train.max_bad_steps", train.max_bad_steps, 1),
        *_share("train.proportion_empty_prompts", train.proportion_empty_prompts),
        *_share("train.ema_decay", train.ema_decay),
        *_positive("train.max_grad_norm", train.max_grad_norm),
        *_at_least("train.max_loss_ratio", train.max_loss_ratio, 1),
    ]
    if not 0 <= train.token_routing < 1:
        faults.append(Fault(where="train.token_routing", message="is a share of the tokens, below 1"))
    if train.token_routing and train.torch_compile:
        hint = "choose one of the two"
        faults.append(Fault(where="train.token_routing", message="cannot be compiled (torch_compile)", hint=hint))
    if train.snr_gamma is not None:
        faults += _positive("train.snr_gamma", train.snr_gamma)
    if config.model.prediction_type not in {"epsilon", "v_prediction"}:
        hint = "epsilon or v_prediction"
        faults.append(Fault(where="model.prediction_type", message="is not known", hint=hint))
    return faults


def _worker_faults(config: PretrainConfig) -> list[Fault]:
    workers, faults = config.workers, []
    faults += _at_least("workers.trainers", workers.trainers, 1)
    faults += _at_least("encode.encoders", config.encode.encoders, 1)
    faults += _at_least("encode.encode_batch_size", config.encode.encode_batch_size, 1)
    least = workers.trainers if workers.min_trainers is None else workers.min_trainers
    if not 1 <= least <= max(workers.trainers, 1):
        hint = "between 1 and workers.trainers"
        faults.append(Fault(where="workers.min_trainers", message=f"cannot be {least}", hint=hint))
    if workers.trainers >= 1 and config.train.global_batch_size < workers.trainers:
        hint = "every trainer needs a picture"
        faults.append(Fault(where="train.global_batch_size", message="is less than workers.trainers", hint=hint))
    for name in ("trainer_usd_per_h", "encoder_usd_per_h"):
        if (price := getattr(workers, name)) is not None:
            faults += _at_least(f"workers.{name}", price, 0)
    return faults


def _bucket_faults(config: PretrainConfig) -> list[Fault]:
    steps, faults = config.data.bucket_reso_steps, []
    if (gpus := config.encode.gpus_per_encoder) is not None:
        faults += _at_least("encode.gpus_per_encoder", gpus, 0)
    least = min((phase.resolution for phase in config.phases), default=steps)
    if config.data.enable_bucket and (steps < 1 or steps % LATENT_SIDE_PX or steps > least):
        hint = f"a multiple of {LATENT_SIDE_PX}, not above the least resolution"
        faults.append(Fault(where="data.bucket_reso_steps", message=f"cannot be {steps}", hint=hint))
    return faults


def _tracking_faults(config: PretrainConfig) -> list[Fault]:
    if not config.tracking.trace_rows or "://" not in config.storage:
        return []
    hint = "name a folder as storage, or leave it out"
    return [Fault(where="tracking.trace_rows", message="needs a folder as storage", hint=hint)]


def _at_least(where: str, value: float, least: float) -> list[Fault]:
    sound = math.isfinite(value) and value >= least
    return [] if sound else [Fault(where=where, message=f"cannot be {value}", hint=f"at least {least}")]


def _positive(where: str, value: float) -> list[Fault]:
    sound = math.isfinite(value) and value > 0
    return [] if sound else [Fault(where=where, message=f"cannot be {value}", hint="more than 0")]


def _share(where: str, value: float) -> list[Fault]:
    return [] if 0 <= value <= 1 else [Fault(where=where, message=f"cannot be {value}", hint="a share, 0 to 1")]
