"""Reads what somebody asks of a pre-training run, and checks it whole."""

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.pretraining import (
    LATENT_SIDE_PX,
    MOST_HASH_DISTANCE,
    PICTURE_MODES,
    Ingest,
    Mode,
    Parallel,
    PretrainConfig,
)
from giornata.protocol.pretraining_types import judged_too, typed


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
    config, faults = typed(PretrainConfig, values)
    faults += [] if config is None else judged_too(config_faults(config), faults)
    if faults or config is None:
        raise InvalidInput(faults)
    return config


def parse_ingest(values: Mapping[str, Any]) -> Ingest:
    """The options of an ingest alone. Raises InvalidInput with all faults, each with its field."""
    options, faults = typed(Ingest, values, under="ingest")
    faults += [] if options is None else judged_too(_ingest_faults(options), faults)
    if faults or options is None:
        raise InvalidInput(faults)
    return options


def config_faults(config: PretrainConfig) -> list[Fault]:
    """What types cannot say."""
    return [
        *_named(config),
        *_ingest_faults(config.ingest),
        *_phase_faults(config),
        *_train_faults(config),
        *_worker_faults(config),
        *_mode_faults(config),
        *_bucket_faults(config),
        *_caption_weights(config.data.caption_weights),
        *_tracking_faults(config),
        *_evaluate_faults(config),
    ]


def folder_faults(config: PretrainConfig) -> list[Fault]:
    """Folders that would be others on each machine that reads them: for a run that is begun elsewhere."""
    named = {
        "storage": config.storage,
        "data.shards": config.data.shards,
        "encode.latents": config.encode.latents,
        "evaluate.inception": config.evaluate.inception,
    }
    hint = "a path from the root that all nodes of the cluster see, or s3://bucket/path"
    return [
        Fault(where=where, message=f"{value!r} is another folder on each machine", hint=hint)
        for where, value in named.items()
        if value is not None and "://" not in value and not PurePosixPath(value).is_absolute()
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
        *_at_least("ingest.max_captions", ingest.max_captions, 1),
        *_at_least("ingest.max_aspect_ratio", ingest.max_aspect_ratio, 1),
        *_share("ingest.max_quarantined_share", ingest.max_quarantined_share),
        *_at_least("ingest.shuffle_bytes", ingest.shuffle_bytes, 1),
        *_hash_distance(ingest.dedupe_hash_distance),
        *_modes(ingest.modes),
        *([] if ingest.caption_columns else [Fault(where="ingest.caption_columns", message="names no column")]),
    ]


def _modes(modes: tuple[str, ...] | None) -> list[Fault]:
    unknown = ", ".join(repr(mode) for mode in modes or () if mode not in PICTURE_MODES)
    hint = f"any of {', '.join(PICTURE_MODES)}; leave it out to keep all"
    if modes is not None and not modes:
        return [Fault(where="ingest.modes", message="names none, so that nothing is kept", hint=hint)]
    return [Fault(where="ingest.modes", message=f"{unknown} is no mode", hint=hint)] if unknown else []


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
        if phase.encoders is not None:
            faults += _at_least(f"{where}.encoders", phase.encoders, 1)
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
    if train.channels_last and train.parallel is not Parallel.DDP:
        hint = "leave it out, or set train.parallel to ddp"
        message = f"cannot go with train.parallel {train.parallel}, which takes contiguous weights only"
        faults.append(Fault(where="train.channels_last", message=message, hint=hint))
    if train.snr_gamma is not None:
        faults += _positive("train.snr_gamma", train.snr_gamma)
    if config.model.prediction_type not in {"epsilon", "v_prediction"}:
        hint = "epsilon or v_prediction"
        faults.append(Fault(where="model.prediction_type", message="is not known", hint=hint))
    return faults


def _worker_faults(config: PretrainConfig) -> list[Fault]:
    workers, faults = config.workers, []
    faults += _at_least("workers.trainers", workers.trainers, 1)
    faults += _at_least("workers.resize_interval_s", workers.resize_interval_s, 1)
    if workers.interruption_s is not None:
        faults += _positive("workers.interruption_s", workers.interruption_s)
    faults += _at_least("encode.encoders", config.encode.encoders, 1)
    faults += _at_least("encode.encode_batch_size", config.encode.encode_batch_size, 1)
    least = workers.min_trainers
    if least is not None and not 1 <= least <= max(workers.trainers, 1):
        hint = "between 1 and workers.trainers"
        faults.append(Fault(where="workers.min_trainers", message=f"cannot be {least}", hint=hint))
    if workers.trainers >= 1 and config.train.global_batch_size < workers.trainers:
        hint = "every trainer needs a picture"
        faults.append(Fault(where="train.global_batch_size", message="is less than workers.trainers", hint=hint))
    for name in ("trainer_usd_per_h", "encoder_usd_per_h"):
        if (price := getattr(workers, name)) is not None:
            faults += _at_least(f"workers.{name}", price, 0)
    return faults


def _mode_faults(config: PretrainConfig) -> list[Fault]:
    if config.encode.mode is not Mode.OFFLINE or config.encode.store_text:
        return []
    hint = "leave it out, or set encode.mode to hybrid, which encodes text beside the run"
    return [Fault(where="encode.store_text", message="mode offline reads the text that is stored", hint=hint)]


def _bucket_faults(config: PretrainConfig) -> list[Fault]:
    steps, faults = config.data.bucket_reso_steps, []
    if (gpus := config.encode.gpus_per_encoder) is not None:
        faults += _at_least("encode.gpus_per_encoder", gpus, 0)
    least = min((phase.resolution for phase in config.phases), default=steps)
    if config.data.enable_bucket and (steps < 1 or steps % LATENT_SIDE_PX or steps > least):
        hint = f"a multiple of {LATENT_SIDE_PX}, not above the least resolution"
        faults.append(Fault(where="data.bucket_reso_steps", message=f"cannot be {steps}", hint=hint))
    return faults


def _caption_weights(weights: tuple[float, ...] | None) -> list[Fault]:
    # A picture may have one caption only: the first weight alone must choose it.
    sound = weights is None or (weights and all(math.isfinite(each) and each >= 0 for each in weights) and weights[0])
    hint = "one number for each caption, none below 0, the first above 0"
    return [] if sound else [Fault(where="data.caption_weights", message=f"cannot be {weights}", hint=hint)]


def _tracking_faults(config: PretrainConfig) -> list[Fault]:
    if not config.tracking.trace_rows or "://" not in config.storage:
        return []
    hint = "name a folder as storage, or leave it out"
    return [Fault(where="tracking.trace_rows", message="needs a folder as storage", hint=hint)]


def _evaluate_faults(config: PretrainConfig) -> list[Fault]:
    evaluate, train = config.evaluate, config.train
    faults = [
        *_at_least("evaluate.checkpoints", evaluate.checkpoints, 0),
        *_at_least("evaluate.rows", evaluate.rows, 1),
        *_positive("evaluate.timeout_s", evaluate.timeout_s),
    ]
    for name in ("clip", "inception"):
        if getattr(evaluate, name) is not None and not train.validation_rows:
            hint = "hold some back: train.validation_rows"
            faults.append(Fault(where=f"evaluate.{name}", message="has no rows to compare with", hint=hint))
    if evaluate.checkpoints and not train.validation_rows and not train.validation_prompts:
        hint = "name train.validation_prompts, or hold back train.validation_rows"
        faults.append(Fault(where="evaluate.checkpoints", message="there is nothing to evaluate", hint=hint))
    return faults


def _at_least(where: str, value: float, least: float) -> list[Fault]:
    sound = math.isfinite(value) and value >= least
    return [] if sound else [Fault(where=where, message=f"cannot be {value}", hint=f"at least {least}")]


def _positive(where: str, value: float) -> list[Fault]:
    sound = math.isfinite(value) and value > 0
    return [] if sound else [Fault(where=where, message=f"cannot be {value}", hint="more than 0")]


def _share(where: str, value: float) -> list[Fault]:
    return [] if 0 <= value <= 1 else [Fault(where=where, message=f"cannot be {value}", hint="a share, 0 to 1")]
