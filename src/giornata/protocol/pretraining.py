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
    """Column of the source that holds the pictures."""
    caption_columns: Annotated[tuple[str, ...], AfterValidator(not_empty)] = ("caption",)
    """Columns of the source that hold captions, in their order."""
    min_side_px: AtLeast1 = 64
    """Smallest shorter side of a picture, in pixels. Smaller pictures go to quarantine."""
    max_aspect_ratio: Annotated[float, Field(ge=1)] = 4.0
    """Largest ratio of the longer to the shorter side. Longer pictures go to quarantine."""
    min_caption_chars: AtLeast0 = 1
    """Fewest characters of a caption. A picture without such a caption goes to quarantine."""
    max_captions: AtLeast1 = 1
    """Maximum number of captions of a picture that are kept; training chooses one of them in each epoch."""
    modes: Annotated[tuple[str, ...] | None, AfterValidator(_known_modes)] = None
    """Modes of pictures that are kept, in Pillow's terms ("RGB", "L", "P", "CMYK", "I;16"); others go to quarantine.
    None: all are kept, and become RGB with 8 bits."""
    rows_per_shard: AtLeast1 = 1000
    """Pictures in each shard; the last shard may have fewer."""
    max_quarantined_share: Share = 0.05
    """The ingest fails when more than this share of all rows goes to quarantine."""
    shuffle_bytes: AtLeast1 = 1 << 40
    """Bytes of the source that are shuffled together; a larger source is shuffled in stretches of that size."""


@dataclass(frozen=True, slots=True, kw_only=True, config=TABLE)
class Data:
    """The normalized shards, and how pictures are cut out of them."""

    shards: str
    """Folder or s3:// address that `giornata pretrain ingest` wrote."""
    enable_bucket: bool = False
    """True: pictures are cut to buckets near their own aspect ratio. False: all are cut to squares."""
    bucket_reso_steps: int = 64
    """Step between the sides of buckets, in pixels: a multiple of 8."""
    center_crop: bool = True
    """True: the middle of a picture is kept. False: a place drawn from the seed; pictures that are encoded during the
    run have another place in each epoch."""
    random_flip: bool = False
    """Mirror half of the pictures from left to right, drawn from the seed. Not for captions with sides."""
    caption_weights: Annotated[tuple[AnyFloat, ...] | None, AfterValidator(_choosing)] = None
    """Weights by which a picture's captions are chosen, in their order; captions after the last weight never are.
    None: all equally often."""
    max_quarantined_share: Share = 0.001
    """More rows than this that cannot be read although they were ingested stop the run."""


@dataclass(frozen=True, slots=True, kw_only=True, config=TABLE)
class Model:
    """The trained model and its frozen parts."""

    architecture: Architecture
    """The UNet that is trained: sd2 (Stable Diffusion 2), sdxl-tiny (for tests) or shapes (a small SDXL)."""
    pretrained_model_name_or_path: str | None = None
    """Where VAE, tokenizers and text encoders are: a hub id or a folder. None: those of the package (shapes), or made
    from the seed (sdxl-tiny)."""
    prediction_type: Literal["epsilon", "v_prediction"] = "epsilon"
    """The model's target: the noise (epsilon), or v of Salimans and Ho (v_prediction)."""
    random_encoders: bool = False
    """Frozen parts of the right size with random weights: for measuring speed only."""


@dataclass(frozen=True, slots=True, kw_only=True, config=TABLE)
class Encode:
    """Place and number of the encoders."""

    mode: Mode = Mode.OFFLINE
    """Where pictures and captions are encoded: offline (before the run), hybrid (pictures before, text beside),
    online (both beside the run) or colocated (both by the trainers)."""
    latents: str | None = None
    """Folder or address of encoded shards; None: `latents` under the run's storage."""
    store_text: bool = True
    """Text embeddings are stored beside the latents. OFFLINE needs them, HYBRID does not."""
    encode_batch_size: AtLeast1 = 16
    """Pictures or captions that one encoder takes at once."""
    encoders: AtLeast1 = 1
    """Actors; a phase may have its own number. `giornata pretrain run --synthetic` says how many are needed."""
    accelerator_type: str | None = None
    """Of the encoders' nodes, in Ray's terms ("A10G"); None: any."""
    gpus_per_encoder: NotNegative | None = None
    """A share lets encoders and trainers work on one GPU; None: one for each where there are GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True, config=TABLE)
class Phase:
    """A part of the schedule with one resolution. `samples` counts pictures, repeats included."""

    name: str
    """Name of the phase, different from those of other phases."""
    resolution: Annotated[int, Field(ge=1, multiple_of=LATENT_SIDE_PX)]
    """Side of the pictures in pixels: a multiple of 8. Buckets have about as many pixels as its square."""
    samples: AtLeast1
    """Pictures that the phase trains, repeats included."""
    learning_rate: Positive = 1e-4
    """Highest learning rate of the phase, for one optimizer step of `train.global_batch_size`."""
    lr_scheduler: LrScheduler = LrScheduler.CONSTANT_WITH_WARMUP
    """diffusers' schedule, by its name, over the steps of this phase. No step has a rate of 0."""
    lr_warmup_steps: AtLeast0 = 0
    """Number of first steps in which the rate rises to learning_rate in even parts."""
    train_batch_size: AtLeast1 | None = None
    """Pictures at once on one device; None: as many as fit, found by trial."""
    encoders: AtLeast1 | None = None
    """Encoders beside this phase; None: encode.encoders."""


@dataclass(frozen=True, slots=True, kw_only=True, config=TABLE)
class Train:
    """The loop. One step takes `global_batch_size` pictures, however many trainers there are."""

    global_batch_size: AtLeast1
    """Pictures of one optimizer step, over all trainers. At least `workers.trainers`."""
    parallel: Parallel = Parallel.DDP
    """ddp: each trainer holds the whole model. fsdp2: gradients and moments are sharded. hsdp: they are sharded
    within a node."""
    mixed_precision: Precision = Precision.NO
    """Precision of the passes: no (float32) or bf16. Weights, moments and averages are float32."""
    torch_compile: bool = False
    """Compile the blocks of the UNet with torch.compile."""
    channels_last: bool = False
    """Weights and activations in that layout; with DDP only, as FSDP2 takes contiguous weights."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: slower, and with less memory."""
    optimizer: PretrainOptimizer = PretrainOptimizer.ADAMW
    """muon: its matrices take adam_weight_decay, and a momentum of 0.95; what else it trains takes all adam_*. The
    learning rate is AdamW's. adamw_8bit: with parallel ddp only."""
    adam_beta1: float = 0.9
    """Decay of AdamW's first moment."""
    adam_beta2: float = 0.999
    """Decay of AdamW's second moment."""
    adam_weight_decay: float = 0.01
    """Decoupled weight decay of the optimizer."""
    adam_epsilon: float = 1e-8
    """Term that AdamW adds to its denominator."""
    max_grad_norm: Positive = 1.0
    """Gradients with a larger norm, over all parameters, are scaled down to it."""
    snr_gamma: Positive | None = None
    """Min-SNR weighting of the loss with this gamma (Hang et al. 2023); 5.0 is usual. None: no weighting."""
    proportion_empty_prompts: Share = 0.1
    """Share of rows whose caption is replaced by the empty one, for classifier-free guidance."""
    use_ema: bool = True
    """Keep an exponential moving average of the weights, which validation, samples and export use."""
    ema_decay: Share = 0.9999
    """Decay of that average in each step. In early steps the decay is smaller."""
    ema_start_samples: AtLeast0 = 0
    """The average begins when this many pictures of the whole schedule were trained."""
    max_loss_ratio: Annotated[float, Field(ge=1)] = 10.0
    """A step whose loss is this many times the running median, or not a number, is left out and counted."""
    max_bad_steps: AtLeast1 = 10
    """Number of left-out steps in a row that ends the run."""
    checkpoint_steps: AtLeast1 = 500
    """Optimizer steps between two checkpoints. With `checkpoint_cadence` young_daly, at most so many."""
    checkpoint_cadence: CheckpointCadence = CheckpointCadence.STEPS
    """`young_daly` measures what a checkpoint costs and saves every sqrt(2 x cost x mean time between interruptions)
    seconds, at least 60 and at most 3600 seconds apart (`workers.interruption_s`)."""
    checkpoints_total_limit: AtLeast1 = 3
    """Newest checkpoints that are kept; older ones are removed."""
    validation_steps: AtLeast0 = 0
    """Optimizer steps between two measurements of the validation loss; 0: none."""
    validation_rows: AtLeast0 = 0
    """Number of rows, chosen by their key, that are never trained and give the validation loss."""
    validation_prompts: tuple[str, ...] = ()
    """Prompts of the samples that an evaluation draws."""
    pinned_order: bool = False
    """Every step takes the same pictures in every run with as many trainers: slower, for exact comparisons."""


@dataclass(frozen=True, slots=True, kw_only=True, config=TABLE)
class Workers:
    """The trainers. Between `min_trainers` and `trainers` the run goes on with what there is."""

    trainers: AtLeast1 = 1
    """Trainers, one on each GPU; without GPUs processes."""
    min_trainers: AtLeast1 | None = None
    """The run goes on with at least this many trainers. None: always with `trainers`."""
    use_gpu: bool = True
    """True: each trainer takes a GPU. False: trainers compute on processors."""
    accelerator_type: str | None = None
    """Type of the trainers' GPUs, in Ray's terms ("H100"); None: any."""
    max_failures: int = -1
    """Restarts after a crash; -1: as many as it takes, while checkpoints come in between. Preemptions are none."""
    interruption_s: Positive | None = None
    """Mean seconds between two interruptions of the whole run, for `train.checkpoint_cadence` young_daly. None:
    counted while the run goes on, from a first guess of four hours."""
    resize_interval_s: Annotated[float, Field(ge=1)] = 60.0
    """Seconds between two looks whether there is room for more trainers. Before the number changes the trainers write
    a checkpoint, from which they begin anew: no step is repeated."""
    trainer_usd_per_h: NotNegative | None = None
    """Price of one trainer's device in USD an hour. None: the run counts no cost of trainers."""
    encoder_usd_per_h: NotNegative | None = None
    """Price of one encoder's device in USD an hour. None: the run counts no cost of encoders."""


@dataclass(frozen=True, slots=True, kw_only=True, config=TABLE)
class Tracking:
    """Trackers that get the metrics, beside the run's own files."""

    tensorboard: bool = False
    """Write event files of TensorBoard below `tensorboard` of the run's storage."""
    wandb_project: str | None = None
    """Project of Weights & Biases that gets the metrics, where WANDB_API_KEY is set. None: none."""
    trace_rows: bool = False
    """Every trainer writes down which rows each step took (giornata.pretrain.run_state.proof): for proofs. Needs a
    folder as storage that all trainers share."""


@dataclass(frozen=True, slots=True, kw_only=True, config=TABLE)
class Evaluate:
    """Evaluation of checkpoints during the run, which never waits for it.

    An evaluation has samples of train.validation_prompts, the validation loss of the averaged weights, and scores
    where networks for them are named.
    """

    checkpoints: AtLeast0 = 0
    """Every N-th checkpoint is evaluated, and the last of each phase. 0: none during the run."""
    clip: str | None = None
    """Folder or hub id of the CLIP model that computes CLIP score and CMMD. None: neither is computed."""
    inception: str | None = None
    """TorchScript file of the Inception network that computes FID. None: it is not computed."""
    rows: AtLeast1 = 256
    """Maximum number of held-back rows that are drawn to compute these scores."""
    use_gpu: bool = False
    """True: each evaluation waits for a GPU. False: it takes a GPU that trainers and encoders leave, or
    processors."""
    timeout_s: Positive = 1800.0
    """Seconds after which an evaluation is stopped. The run waits as long for its last evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True, config=TABLE)
class PretrainConfig:
    """A whole run. `storage` (folder or s3:// address) holds checkpoints, samples and metrics under `name`."""

    name: Annotated[str, AfterValidator(_names_a_folder)]
    """Name of the run and of its folder below `storage`: letters, digits, - _ ."""
    storage: str
    """Folder, or s3:// address, that holds the checkpoints, metrics and samples of runs."""
    data: Data
    model: Model
    train: Train
    phases: Annotated[tuple[Phase, ...], AfterValidator(not_empty)]
    seed: int = 0
    """Seed of the weights, the order of rows, noise, crops and captions."""
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
