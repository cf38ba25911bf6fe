"""What somebody asks of a pre-training run: the whole of its configuration, checked at once.

The names are those of diffusers' training scripts. Sizes are (height, width) in pixels. A configuration is a TOML
file, a recipe (giornata.pretrain.recipes) or the spec of a `pretrain` job; all three pass through
`giornata.protocol.pretraining_checks.parse`.
"""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import ConfigDict

FORBID = ConfigDict(extra="forbid")
LATENT_SIDE_PX = 8
"""Pixels of a side for each of a latent's."""
MOST_HASH_DISTANCE = 16
PICTURE_MODES = ("RGB", "RGBA", "L", "LA", "P", "PA", "1", "CMYK", "YCbCr", "LAB", "HSV", "I", "I;16", "I;16B", "F")
"""Pillow's modes of files that it opens."""


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
    max_captions: int = 1
    """So many captions of a picture are kept, at most; training chooses one of them in each epoch."""
    modes: tuple[str, ...] | None = None
    """Modes of pictures that are kept, in Pillow's terms ("RGB", "L", "P", "CMYK", "I;16"); others go to quarantine.
    None: all are kept, and become RGB with 8 bits."""
    rows_per_shard: int = 1000
    dedupe_hash_distance: int | None = None
    """Pictures whose perceptual hashes differ in at most this many of 64 bits are one; None: only equal bytes are."""
    max_quarantined_share: float = 0.05
    shuffle_bytes: int = 1 << 40
    """So many bytes of the source are mixed with one another and written; a larger source in stretches of that."""


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
    caption_weights: tuple[float, ...] | None = None
    """How often each of a picture's captions is chosen, in their order, in proportion to one another; captions after
    the last weight never are. None: all equally often."""
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
    """Text embeddings are stored beside the latents. OFFLINE needs them, HYBRID does not."""
    encode_batch_size: int = 16
    encoders: int = 1
    """Actors; a phase may have its own number. `giornata pretrain run --synthetic` says how many."""
    max_encoders: int | None = None
    """Lets the run correct their number at its checkpoints, up to this one, by what trainers wait and encoders idle,
    as long as it pays by the prices of `workers`. None: the number stays."""
    correct_after_s: float = 60.0
    """How long a number is watched, at least, before it is corrected."""
    restart_s: float | None = None
    """What a new start of the trainers takes, which a correction has to earn; None: as long as this one took."""
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
    encoders: int | None = None
    """Encoders beside this phase; None: encode.encoders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """The loop. One step takes `global_batch_size` pictures, however many trainers there are."""

    __pydantic_config__ = FORBID

    global_batch_size: int
    parallel: Parallel = Parallel.DDP
    mixed_precision: Precision = Precision.NO
    torch_compile: bool = False
    channels_last: bool = False
    """Weights and activations in that layout; with DDP only, as FSDP2 takes contiguous weights."""
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
    """Restarts after a crash; -1: as many as it takes, while checkpoints come in between. Preemptions are none."""
    resize_interval_s: float = 60.0
    """How often it is looked whether there is room for more trainers. Growing begins the trainers anew, from the
    newest checkpoint."""
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
class Evaluate:
    """Of checkpoints, beside the run and never in its way: samples of train.validation_prompts, the validation loss
    of the averaged weights, and scores where networks for them are named."""

    __pydantic_config__ = FORBID

    checkpoints: int = 0
    """Every so manieth is evaluated, and each that completes a phase; 0: none, until somebody does it by hand."""
    clip: str | None = None
    """Folder or hub id of a CLIP model: CLIP score and CMMD."""
    inception: str | None = None
    """TorchScript file of the Inception network: FID."""
    rows: int = 256
    """Held-back rows that are drawn for these, at most."""
    use_gpu: bool = False
    """Where the run's command runs there is a GPU that neither trainers nor encoders use."""
    timeout_s: float = 1800.0
    """An evaluation that takes longer is ended. The end of the run waits no longer for the last one either."""


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
    evaluate: Evaluate = field(default_factory=Evaluate)

    def to_json(self) -> dict[str, Any]:
        """As `parse` takes it."""
        return asdict(self)

    @property
    def samples(self) -> int:
        """Pictures of the whole schedule, repeats included."""
        return sum(phase.samples for phase in self.phases)

    def encoders_of(self, phase: int) -> int:
        """Encoders beside a phase, in modes that have any. `phase` may be one after the last."""
        own = self.phases[phase].encoders if phase < len(self.phases) else None
        return own or self.encode.encoders
