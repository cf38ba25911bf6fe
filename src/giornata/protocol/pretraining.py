"""The configuration of a pre-training run.

The names are those of diffusers' training scripts. Sizes are (height, width) in pixels. A configuration is a TOML
file, a recipe (giornata.pretrain.recipes) or the spec of a `pretrain` job. All three pass through
`giornata.protocol.pretraining_checks`, which also compares fields with each other.

Each table checks its fields whenever it is made, by `dataclasses.replace` too.
"""

import math
from dataclasses import asdict, field
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from giornata.protocol.training.optimization import LrScheduler

T = TypeVar("T")
TABLE = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
HOUR_S = 3600.0
LATENT_SIDE_PX = 8
"""Pixels of a side for each of a latent's."""
PICTURE_MODES = ("RGB", "RGBA", "L", "LA", "P", "PA", "1", "CMYK", "YCbCr", "LAB", "HSV", "I", "I;16", "I;16B", "F")
"""Pillow's modes of files that it opens."""

AtLeast0 = Annotated[int, Field(ge=0)]
AtLeast1 = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
AnyFloat = Annotated[float, Field(allow_inf_nan=True)]
Share = Annotated[float, Field(ge=0, le=1)]


def _names_a_folder(name: str) -> str:
    plain = name and all(letter.isalnum() or letter in "-_." for letter in name)
    if not plain or name.startswith("."):
        raise ValueError("cannot name a folder: use letters, digits, - _ .")
    return name


def not_empty(values: tuple[T, ...]) -> tuple[T, ...]:
    # Field(min_length=1) would complain of items too that have a fault of their own.
    if not values:
        raise ValueError("there is none: give at least one")
    return values


def _known_modes(modes: tuple[str, ...] | None) -> tuple[str, ...] | None:
    unknown = ", ".join(repr(mode) for mode in modes or () if mode not in PICTURE_MODES)
    if unknown or modes == ():
        found = f"{unknown} is no mode" if unknown else "no mode is named, so that no picture would be kept"
        raise ValueError(f"{found}: name any of {', '.join(PICTURE_MODES)}, or leave the field out to keep all")
    return modes


def _choosing(weights: tuple[float, ...] | None) -> tuple[float, ...] | None:
    # A picture may have one caption only: the first weight alone must choose it.
    if weights is not None and not (weights and weights[0] and all(0 <= each < math.inf for each in weights)):
        raise ValueError("give one number for each caption, none below 0, the first above 0")
    return weights


class Mode(StrEnum):
    """The place where pictures and captions are encoded."""

    OFFLINE = "offline"  # before the run: latents and text embeddings are read
    HYBRID = "hybrid"  # latents before the run, text beside it
    ONLINE = "online"  # both beside the run, by actors that stream to the trainers
    COLOCATED = "colocated"  # both by the trainers themselves: what the others are compared with


BESIDE = frozenset({Mode.ONLINE, Mode.HYBRID})
"""Modes in which encoders work beside the trainers."""


class Architecture(StrEnum):
    """The architecture of the model that pre-training makes."""

    SD2 = "sd2"  # Stable Diffusion 2's UNet, with OpenCLIP ViT-H's text encoder
    SDXL_TINY = "sdxl-tiny"  # the tests' SDXL: everything in it, nothing in size
    SHAPES = "shapes"  # the small SDXL that draws shapes


class Parallel(StrEnum):
    """The way in which the model is spread over the trainers."""

    DDP = "ddp"
    FSDP2 = "fsdp2"  # parameters stay gathered after the forward pass: only gradients and moments are sharded
    HSDP = "hsdp"  # FSDP2 within a node, replicas over nodes


class CheckpointCadence(StrEnum):
    """The rule that decides when a checkpoint is due."""

    STEPS = "steps"  # after every checkpoint_steps
    YOUNG_DALY = "young_daly"  # by what a checkpoint costs and how often the run is interrupted


class PretrainOptimizer(StrEnum):
    """The optimizer of the weights."""

    ADAMW = "adamw"
    ADAMW_8BIT = "adamw_8bit"  # moments in 8 bits, by bitsandbytes
    MUON = "muon"  # matrices by Muon, with updates as large as AdamW's; the rest by AdamW


class Precision(StrEnum):
    """Precision of the forward pass. Weights, moments and averages are float32."""

    NO = "no"
    BF16 = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True, config=TABLE)
class Ingest:
    """Rules for pictures of a source. A refused picture goes to quarantine with the reason."""

    image_column: str = "jpg"
    """Name of the source's column with the bytes of the pictures."""
    caption_columns: Annotated[tuple[str, ...], AfterValidator(not_empty)] = ("caption",)
    """Names of the source's columns with captions. The first max_captions captions of a picture are kept."""
    min_side_px: AtLeast1 = 64
    """Minimum length of a picture's shorter side, in pixels. Smaller pictures go to quarantine."""
    max_aspect_ratio: Annotated[float, Field(ge=1)] = 4.0
    """Maximum ratio of a picture's longer side to its shorter side. Longer pictures go to quarantine."""
    min_caption_chars: AtLeast0 = 1
    """Minimum number of characters of a caption. A picture whose captions are all shorter goes to quarantine."""
    max_captions: AtLeast1 = 1
    """Maximum number of captions that a picture keeps. Training draws one of them in each epoch."""
    modes: Annotated[tuple[str, ...] | None, AfterValidator(_known_modes)] = None
    """Color modes of pictures that are kept, in Pillow's terms: RGB, L, P, CMYK, I;16 and so on. Pictures of other
    modes go to quarantine. Default: every mode is kept. All pictures become RGB with 8 bits."""
    rows_per_shard: AtLeast1 = 1000
    """Number of pictures in each shard. The last shard may have fewer."""
    max_quarantined_share: Share = 0.05
    """Maximum share of all rows that may go to quarantine: 0.05 is one in twenty. With more, the ingest fails."""
    shuffle_bytes: AtLeast1 = 1 << 40
    """Maximum bytes of the source that are shuffled together. A larger source is shuffled in parts of this size."""


@dataclass(frozen=True, slots=True, kw_only=True, config=TABLE)
class Data:
    """The normalized shards, and how pictures are cut out of them."""

    shards: str
    """Folder or s3:// address with the shards that `giornata pretrain ingest` wrote."""
    enable_bucket: bool = False
    """true: crop each picture to the bucket nearest to its own aspect ratio. false: crop all pictures to squares."""
    bucket_reso_steps: int = 64
    """With enable_bucket: sides of buckets are multiples of this number of pixels, itself a multiple of 8."""
    center_crop: bool = True
    """true: crop pictures in the middle. false: the seed decides the place of the crop. Pictures that are encoded
    during the run then get another crop in each epoch."""
    random_flip: bool = False
    """true: mirror half of the pictures, which the seed draws, from left to right. Do not use it if captions speak of
    left and right."""
    caption_weights: Annotated[tuple[AnyFloat, ...] | None, AfterValidator(_choosing)] = None
    """Relative weights with which a picture's first, second and further captions are drawn. Captions after the last
    weight are never drawn. Default: all captions are drawn equally often."""
    max_quarantined_share: Share = 0.001
    """Maximum share of ingested rows that turn out to be unreadable: 0.001 is one in a thousand. With more, the run
    stops."""


@dataclass(frozen=True, slots=True, kw_only=True, config=TABLE)
class Model:
    """The trained model and its frozen parts."""

    architecture: Architecture
    """Architecture of the UNet that is trained: sd2 (Stable Diffusion 2), sdxl-tiny (for tests) or shapes (a small
    SDXL)."""
    pretrained_model_name_or_path: str | None = None
    """Hub id or folder of the VAE, the tokenizers and the text encoders, which are not trained. Default: those of the
    package for shapes, random ones for sdxl-tiny. Required for sd2 without random_encoders."""
    prediction_type: Literal["epsilon", "v_prediction"] = "epsilon"
    """Target that the UNet predicts. epsilon: the noise. v_prediction: v (Salimans and Ho, 2022)."""
    random_encoders: bool = False
    """true: use random weights for VAE and text encoders, in their true size. This measures speed and trains nothing
    useful."""


@dataclass(frozen=True, slots=True, kw_only=True, config=TABLE)
class Encode:
    """Place and number of the encoders."""

    mode: Mode = Mode.OFFLINE
    """Place where pictures and captions are encoded. offline: both before the run. hybrid: pictures before, captions
    during the run. online: both during the run, on encoders. colocated: both during the run, on the trainers."""
    latents: str | None = None
    """Folder or s3:// address of the encoded shards. Default: `latents` below `storage`."""
    store_text: bool = True
    """true: `giornata pretrain encode` also stores text embeddings. Mode offline needs them; mode hybrid ignores
    them."""
    encode_batch_size: AtLeast1 = 16
    """Number of pictures or captions that one encoder encodes at once. Higher numbers need more GPU memory."""
    encoders: AtLeast1 = 1
    """Number of encoders, which are Ray actors. With too few, trainers wait. `giornata pretrain run --synthetic`
    measures how many are needed, and a phase may have its own number."""
    accelerator_type: str | None = None
    """Type of the encoders' GPUs, as Ray names it, such as A10G. Default: any type."""
    gpus_per_encoder: NotNegative | None = None
    """Number of GPUs of each encoder. With a fraction such as 0.25, encoders share a GPU with each other or with
    trainers. Default: 1, or 0 if trainers use no GPU and encode.accelerator_type is not set."""


@dataclass(frozen=True, slots=True, kw_only=True, config=TABLE)
class Phase:
    """A part of the schedule with one resolution. `samples` counts pictures, repeats included."""

    name: str
    """Name of the phase in metrics and reports. Each phase needs another name."""
    resolution: Annotated[int, Field(ge=1, multiple_of=LATENT_SIDE_PX)]
    """Side of the training square in pixels, a multiple of 8. Buckets have about as many pixels as this square."""
    samples: AtLeast1
    """Number of pictures that the phase trains. A picture that is trained twice counts twice."""
    learning_rate: Positive = 1e-4
    """Highest learning rate of the phase. A step has train.global_batch_size pictures; the rate is not scaled by
    their number."""
    lr_scheduler: LrScheduler = LrScheduler.CONSTANT_WITH_WARMUP
    """Learning rate schedule over the steps of this phase, as in diffusers. No step has a rate of 0."""
    lr_warmup_steps: AtLeast0 = 0
    """Number of first steps of the phase in which the rate rises linearly to learning_rate. 0: no warm-up."""
    train_batch_size: AtLeast1 | None = None
    """Number of pictures that one device trains at once. Default: as many as fit into its memory, found by trial."""
    encoders: AtLeast1 | None = None
    """Number of encoders during this phase, in the modes hybrid and online. Default: encode.encoders."""


@dataclass(frozen=True, slots=True, kw_only=True, config=TABLE)
class Train:
    """The loop. One step takes `global_batch_size` pictures, however many trainers there are."""

    global_batch_size: AtLeast1
    """Number of pictures of one optimizer step, over all trainers together. At least workers.trainers."""
    parallel: Parallel = Parallel.DDP
    """Distribution of the model over trainers. ddp: each trainer holds all of it. fsdp2: gradients and moments are
    sharded over all trainers, which takes less memory. hsdp: they are sharded within each node."""
    mixed_precision: Precision = Precision.NO
    """Precision of forward and backward passes: no (float32), or bf16. Weights, moments and averages stay float32."""
    torch_compile: bool = False
    """true: compile the blocks of the UNet with torch.compile. The start takes longer; steps are usually faster."""
    channels_last: bool = False
    """true: keep weights and activations in PyTorch's channels_last memory format. Only with parallel ddp."""
    gradient_checkpointing: bool = False
    """true: recompute activations in the backward pass. Steps are slower and need less memory."""
    optimizer: PretrainOptimizer = PretrainOptimizer.ADAMW
    """Optimizer. adamw_8bit: moments in 8 bits, only with parallel ddp. muon: Muon for matrices, with momentum 0.95
    and adam_weight_decay, and AdamW for all else; use learning rates as for adamw."""
    adam_beta1: float = 0.9
    """Decay rate of AdamW's first moment, from 0 to below 1."""
    adam_beta2: float = 0.999
    """Decay rate of AdamW's second moment, from 0 to below 1."""
    adam_weight_decay: float = 0.01
    """Weight decay, decoupled from the gradient as in AdamW. 0: none."""
    adam_epsilon: float = 1e-8
    """Term that keeps AdamW's division by the second moment finite."""
    max_grad_norm: Positive = 1.0
    """Maximum norm of the gradient over all parameters. Larger gradients are scaled down to it."""
    snr_gamma: Positive | None = None
    """Gamma of min-SNR loss weighting (Hang et al., 2023); 5 is usual. Default: no weighting."""
    proportion_empty_prompts: Share = 0.1
    """Share of rows that are trained with an empty caption: 0.1 is one in ten. Classifier-free guidance needs
    some."""
    use_ema: bool = True
    """true: also keep an exponential moving average (EMA) of the weights. Validation, samples and export use it."""
    ema_decay: Share = 0.9999
    """With use_ema: decay of the average in each step. Early steps have a smaller decay."""
    ema_start_samples: AtLeast0 = 0
    """With use_ema: number of trained pictures, over all phases, after which the average begins."""
    max_loss_ratio: Annotated[float, Field(ge=1)] = 10.0
    """Maximum loss of a step, as a multiple of the running median. A step with a higher loss, or with NaN, does not
    change the weights and is counted."""
    max_bad_steps: AtLeast1 = 10
    """Number of left-out steps in a row (see max_loss_ratio) after which the run fails."""
    checkpoint_steps: AtLeast1 = 500
    """Number of optimizer steps between checkpoints. With checkpoint_cadence young_daly, this is the maximum."""
    checkpoint_cadence: CheckpointCadence = CheckpointCadence.STEPS
    """Rule for the time of checkpoints. steps: every checkpoint_steps. young_daly: every sqrt(2 x seconds of a
    checkpoint x workers.interruption_s) seconds, but at least 60 and at most 3600."""
    checkpoints_total_limit: AtLeast1 = 3
    """Number of newest checkpoints that are kept. Older ones are removed."""
    validation_steps: AtLeast0 = 0
    """Number of optimizer steps between two measurements of the validation loss. 0: no measurements. Needs
    validation_rows."""
    validation_rows: AtLeast0 = 0
    """Number of rows that are held out of training to measure the validation loss. Their keys decide which."""
    validation_prompts: tuple[str, ...] = ()
    """Prompts of the sample images that an evaluation draws. Default: no samples."""
    pinned_order: bool = False
    """true: runs with equally many trainers take the same pictures in each step, for exact comparisons. Steps are
    slower."""


@dataclass(frozen=True, slots=True, kw_only=True, config=TABLE)
class Workers:
    """The trainers. Between `min_trainers` and `trainers` the run goes on with what there is."""

    trainers: AtLeast1 = 1
    """Number of trainers: one process for each GPU, or processes on CPUs without use_gpu."""
    min_trainers: AtLeast1 | None = None
    """Minimum number of trainers with which the run goes on when machines are missing. Default: workers.trainers, so
    the run waits for all."""
    use_gpu: bool = True
    """true: each trainer takes a GPU. false: trainers compute on CPUs."""
    accelerator_type: str | None = None
    """Type of the trainers' GPUs, as Ray names it, such as H100. Default: any type."""
    max_failures: int = -1
    """Maximum number of restarts after crashes. -1: no maximum, as long as checkpoints come in between. Preemptions
    do not count."""
    interruption_s: Positive | None = None
    """Mean seconds between interruptions of the run, for train.checkpoint_cadence young_daly. Default: measured
    during the run, with four hours as the first guess."""
    resize_interval_s: Annotated[float, Field(ge=1)] = 60.0
    """Seconds between checks whether machines for more trainers are there, if min_trainers is below trainers.
    Trainers write a checkpoint before their number changes, and no step is repeated."""
    trainer_usd_per_h: NotNegative | None = None
    """Price of one trainer in US dollars per hour, to report what the run costs. Default: trainers cost nothing in
    reports."""
    encoder_usd_per_h: NotNegative | None = None
    """Price of one encoder in US dollars per hour, to report what the run costs. Default: encoders cost nothing in
    reports."""


@dataclass(frozen=True, slots=True, kw_only=True, config=TABLE)
class Tracking:
    """Trackers that get the metrics, beside the run's own files."""

    tensorboard: bool = False
    """true: write TensorBoard event files into the folder `tensorboard` of the run."""
    wandb_project: str | None = None
    """Project of Weights & Biases that gets the metrics. Needs the environment variable WANDB_API_KEY. Default:
    nothing is sent."""
    trace_rows: bool = False
    """true: each trainer records which rows each step took, as a proof that each row was trained once. Needs a folder
    as storage that all trainers share."""


@dataclass(frozen=True, slots=True, kw_only=True, config=TABLE)
class Evaluate:
    """Evaluation of checkpoints during the run, which never waits for it. An evaluation has samples of
    train.validation_prompts, the validation loss of the averaged weights, and scores where networks for them are
    named."""

    checkpoints: AtLeast0 = 0
    """Number of checkpoints from one evaluation to the next: 1 evaluates each. The last checkpoint of each phase is
    evaluated, too. 0: no evaluation during the run."""
    clip: str | None = None
    """Folder or hub id of the CLIP model for CLIP score and CMMD, which need validation_rows. Default: neither."""
    inception: str | None = None
    """TorchScript file of the Inception network for FID, which needs validation_rows. Default: no FID."""
    rows: AtLeast1 = 256
    """Maximum number of held-out rows whose captions are drawn to compute CLIP score, CMMD and FID."""
    use_gpu: bool = False
    """true: each evaluation waits for a GPU. false: an evaluation takes a GPU that trainers and encoders leave free,
    or CPUs."""
    timeout_s: Positive = 1800.0
    """Maximum seconds of an evaluation, after which it is stopped. The run waits as long for its last evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True, config=TABLE)
class PretrainConfig:
    """A whole run. `storage` (folder or s3:// address) holds checkpoints, samples and metrics under `name`."""

    name: Annotated[str, AfterValidator(_names_a_folder)]
    """Name of the run, and of its folder below storage: letters, digits, hyphens, underscores and dots."""
    storage: str
    """Folder or s3:// address for the checkpoints, metrics and samples of runs."""
    data: Data
    model: Model
    train: Train
    phases: Annotated[tuple[Phase, ...], AfterValidator(not_empty)]
    seed: int = 0
    """Seed of first weights, order of rows, noise, crops and captions. Runs with other seeds differ in all of
    these."""
    ingest: Ingest = field(default_factory=Ingest)
    encode: Encode = field(default_factory=Encode)
    workers: Workers = field(default_factory=Workers)
    tracking: Tracking = field(default_factory=Tracking)
    evaluate: Evaluate = field(default_factory=Evaluate)

    def to_json(self) -> dict[str, Any]:
        """Plain values, as `parse` takes them."""
        return asdict(self)

    @property
    def samples(self) -> int:
        """Pictures of the whole schedule, repeats included."""
        return sum(phase.samples for phase in self.phases)

    def encoders_of(self, phase: int) -> int:
        """Encoders beside a phase, in modes that have any. `phase` may be one after the last."""
        own = self.phases[phase].encoders if phase < len(self.phases) else None
        return own or self.encode.encoders

    def usd_per_s(self, trainers: int, encoders: int) -> float:
        """USD for each second of these devices: trainers, and encoders beside them."""
        workers = self.workers
        per_h = trainers * (workers.trainer_usd_per_h or 0.0) + encoders * (workers.encoder_usd_per_h or 0.0)
        return per_h / HOUR_S
