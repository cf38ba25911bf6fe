"""Decide which jobs may share one batch of one engine, for the control plane, the node and the engine alike.

A job trains jointly when everything that it asks for is either its own affair inside a shared batch (`OWN`) or the
same for all that share it (`SHARED`). Every other field has to be as it is by default: what is new is trained alone
until somebody has shown that it may share.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from giornata.domain.files.caption_length import CHUNK
from giornata.protocol.specs import TrainSpec, model_key
from giornata.protocol.training.optimization import Compile, Optimizer

OWN = frozenset(
    {
        *("dataset", "instance_prompt", "shuffle_caption", "keep_tokens", "caption_separator"),
        "keep_tokens_separator",
        *("caption_dropout_rate", "truncate_captions", "center_crop", "random_flip", "latent_memory_bytes"),
        *("class_prompt", "class_dataset", "num_class_images", "prior_loss_weight"),
        *("alpha", "use_rslora", "init_lora", "stop_text_encoder_training", "use_ema", "ema_decay"),
        *("prediction_type", "snr_gamma", "debiased_estimation_loss", "loss_type", "huber_schedule", "huber_c"),
        *("multires_noise_iterations", "multires_noise_discount", "ip_noise_gamma"),
        *("noise_offset", "rescale_betas_zero_snr", "min_timestep", "max_timestep"),
        *("masked_loss", "do_edm_style_training"),
        *("max_train_steps", "gradient_accumulation_steps", "share_batch", "optimizer", "learning_rate"),
        *("text_encoder_lr", "lr_scheduler", "lr_warmup_steps", "lr_num_cycles", "lr_power"),
        *("network_dropout", "rank_dropout", "module_dropout", "scale_weight_norms"),
        *("optimizer_args", "text_encoder_learning_rates", "block_learning_rates"),
        *("adam_beta1", "adam_beta2", "adam_weight_decay", "adam_epsilon", "max_grad_norm", "seed", "compile"),
        "cuda_graphs",
        *("checkpointing_steps", "checkpoints_keep_latest", "checkpoints_keep_every"),
        *("output_formats", "output_dtype", "output_name", "model_card", "report_to"),
        *("sample_prompts", "sample_steps", "sample_guidance_scale"),
        *("wandb_project", "wandb_entity", "wandb_run_name", "wandb_api_key_secret"),
    }
)
"""Fields that each job in a batch has for itself."""

SHARED = frozenset(
    {
        *("pretrained_model_name_or_path", "revision", "variant", "pretrained_model_sha256"),
        *("pretrained_vae_model_name_or_path", "base_quantization"),
        *("resolution", "with_prior_preservation", "train_batch_size", "rank", "target_modules", "lora_unet_blocks"),
        *("train_text_encoder", "text_encoder_target_modules", "mixed_precision", "gradient_checkpointing"),
        "max_token_length",
    }
)
"""Fields that decide who shares a batch with whom. Of the rank only its ceiling counts."""

_UNORDERED = ("target_modules", "lora_unet_blocks", "text_encoder_target_modules")

OPTIMIZERS = frozenset({Optimizer.ADAMW, Optimizer.SCHEDULE_FREE, Optimizer.LION})
"""Optimizers that treat each number alone, so that a slot's numbers may lie in one row, with zeros between them."""

LINEAR_TARGETS = ("to_q", "to_k", "to_v", "to_out.0", "ff.net.0.proj", "ff.net.2")
"""Ends of names of layers that are linear in every UNet of the SDXL and SD 1.5 families."""

RANK_CEILINGS = (16, 32, 64, 128, 256, 512)
"""Ranks to which smaller ones are padded. The ceiling is part of the key: no neighbor decides on a job's padding."""


def why_solo(spec: TrainSpec) -> tuple[str, ...]:
    """Every reason for which this job trains alone; empty when it may share a batch."""
    reasons = [] if spec.share_batch else ["share_batch is false"]
    reasons += [f"{name} is not offered in a shared batch" for name in _unknown_and_set(spec)]
    if spec.optimizer not in OPTIMIZERS:
        reasons.append(f"optimizer {spec.optimizer} looks at whole tensors")
    if spec.compile is Compile.ON:
        reasons.append("compile on: a shared batch runs without compiled kernels")
    other = [target for target in spec.target_modules if not _is_linear(target)]
    if other:
        reasons.append(f"target_modules {', '.join(other)}: only attention and feed-forward layers are shared")
    return tuple(reasons)


def joint_key(spec: TrainSpec) -> str | None:
    """Jobs with equal keys may train together; None for one that has to train alone (`why_solo` says why)."""
    if why_solo(spec):
        return None
    given = spec.model_dump(mode="json")
    shared = {name: given[name] for name in sorted(SHARED)} | {"rank": rank_ceiling(spec.rank)}
    shared |= {name: given[name] and sorted(given[name]) for name in _UNORDERED}
    if spec.max_token_length == CHUNK:
        del shared["max_token_length"]  # keys from before there were others stay as they are
    shared["base"] = model_key("train", given)
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode("ascii")).hexdigest()[:32]


def joint_key_of(kind: str, spec: Mapping[str, Any]) -> str | None:
    """The same for a job of any kind; None for kinds that know no shared batch. Raises ValidationError."""
    return joint_key(TrainSpec.model_validate(spec)) if kind == "train" else None


def rank_ceiling(rank: int) -> int:
    """The rank that an adapter of this rank is padded to."""
    return next(ceiling for ceiling in RANK_CEILINGS if rank <= ceiling)


def _unknown_and_set(spec: TrainSpec) -> list[str]:
    known, fields = OWN | SHARED, type(spec).model_fields
    return [
        name
        for name in sorted(fields.keys() - known)
        if not fields[name].exclude  # another way to say a field that is judged under its own name
        and getattr(spec, name) != fields[name].get_default(call_default_factory=True)
    ]


def _is_linear(target: str) -> bool:
    return any(target == known or target.endswith(f".{known}") for known in LINEAR_TARGETS)
