"""The metadata of a LoRA file: the `ss_` fields of kohya's trainer and the modelspec fields.

A1111 and model-sharing sites read `ss_base_model_version` and `ss_tag_frequency`; modelspec is
"stability.ai's model metadata standard 1.0.0". Fields that would hold a time are left out: the same training
has to give the same bytes.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from giornata.diffusion.adapter.adapter_plan import AdapterSize, size_of, usual_size
from giornata.diffusion.families import SDXL, Family
from giornata.diffusion.families.sdxl import SDXL_LAYERS_PER_BLOCK
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.adapter import AdapterType
from giornata.protocol.training.base_model import BaseQuantization
from giornata.protocol.training.objective import PSEUDO_HUBER
from giornata.protocol.training.optimization import Optimizer

OPTIMIZER_CLASSES = {
    Optimizer.ADAMW: "torch.optim.adamw.AdamW",
    Optimizer.ADAMW_8BIT: "bitsandbytes.optim.adamw.AdamW8bit",
    Optimizer.PRODIGY: "prodigyopt.prodigy.Prodigy",
    Optimizer.ADAFACTOR: "transformers.optimization.Adafactor",
    Optimizer.SCHEDULE_FREE: "schedulefree.adamw_schedulefree.AdamWScheduleFree",
    Optimizer.LION: "lion_pytorch.lion_pytorch.Lion",
    Optimizer.CAME: "came_pytorch.CAME.CAME",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraFacts:
    """Everything about a training that goes into its result's metadata.

    `tag_counts` counts the comma-separated parts of the captions. `layers_per_block` is the UNet's.
    """

    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    steps: int
    base_model: str
    output_name: str
    trigger: str
    tag_counts: dict[str, int]
    pictures: int
    spec: TrainSpec
    prediction_type: str = "epsilon"
    layers_per_block: int = SDXL_LAYERS_PER_BLOCK
    family: Family = SDXL

    def size(self, layer: str) -> AdapterSize:
        """Return rank and alpha of one layer, by its public name."""
        return size_of(self.spec, layer)


def facts_of(
    spec: TrainSpec,
    *,
    step: int,
    captions: Iterable[str] = (),
    output_name: str = "lora",
    prediction_type: str = "epsilon",
    layers_per_block: int = SDXL_LAYERS_PER_BLOCK,
    family: Family = SDXL,
) -> LoraFacts:
    """Return the facts of a job after `step` steps. `captions` are those of the instance pictures, one each;
    `prediction_type` is the base model's."""
    captions = list(captions)
    return LoraFacts(
        rank=spec.rank,
        alpha=usual_size(spec).alpha,
        target_modules=spec.target_modules,
        steps=step,
        base_model=public_name(spec.pretrained_model_name_or_path),
        output_name=output_name,
        trigger=spec.instance_prompt or "",
        tag_counts=_tags(captions or [spec.instance_prompt or ""]),
        pictures=len(captions),
        spec=spec,
        prediction_type=spec.prediction_type or prediction_type,
        layers_per_block=layers_per_block,
        family=family,
    )


def kohya_metadata(facts: LoraFacts, *, data_sha256: str, convolutions: bool) -> dict[str, str]:
    """Return the metadata of a kohya file. `data_sha256` is the hash of the tensors' bytes, without the header."""
    fields: dict[str, Any] = {
        "ss_base_model_version": facts.family.base_model_version,
        "ss_v2": False,
        "ss_network_module": _network_module(facts.spec),
        "ss_network_dim": facts.rank,
        "ss_network_alpha": facts.alpha,
        "ss_network_args": _network_args(facts, convolutions=convolutions),
        "ss_output_name": facts.output_name,
        "ss_sd_model_name": facts.base_model,
        "ss_new_sd_model_hash": facts.spec.pretrained_model_sha256,
        "ss_tag_frequency": {facts.output_name: facts.tag_counts},
        **_training_fields(facts),
        "sshs_model_hash": data_sha256,
        **_modelspec(facts, data_sha256),
    }
    return {"format": "pt"} | {key: _text(value) for key, value in fields.items() if value is not None}


def _network_module(spec: TrainSpec) -> str:
    """Return the module that reads the file: kohya's own knows plain LoRA only; the rest is LyCORIS's."""
    plain = spec.adapter_type is AdapterType.LORA and not spec.use_dora
    return "networks.lora" if plain else "lycoris.kohya"


def _network_args(facts: LoraFacts, *, convolutions: bool) -> dict[str, Any]:
    spec = facts.spec
    args: dict[str, Any] = {"conv_dim": facts.rank, "conv_alpha": facts.alpha} if convolutions else {}
    if spec.adapter_type is AdapterType.LOKR:
        args |= {"algo": "lokr", "factor": spec.decompose_factor, "decompose_both": spec.decompose_both}
    if spec.use_dora:
        args |= {"algo": "lora", "dora_wd": True, "wd_on_output": True}
    for name in ("rank_pattern", "alpha_pattern", "lora_unet_blocks"):
        if value := getattr(spec, name):
            args[name] = value
    return args


def _training_fields(facts: LoraFacts) -> dict[str, Any]:
    spec = facts.spec
    return {
        "ss_steps": facts.steps,
        "ss_max_train_steps": spec.max_train_steps,
        "ss_num_train_images": facts.pictures or None,
        "ss_total_batch_size": spec.train_batch_size * spec.gradient_accumulation_steps,
        "ss_gradient_accumulation_steps": spec.gradient_accumulation_steps,
        "ss_gradient_checkpointing": spec.gradient_checkpointing,
        "ss_learning_rate": spec.learning_rate,
        "ss_unet_lr": spec.learning_rate,
        "ss_text_encoder_lr": spec.text_encoder_lr if spec.train_text_encoder or spec.train_text_encoder_ti else None,
        "ss_lr_scheduler": str(spec.lr_scheduler),
        "ss_lr_warmup_steps": spec.lr_warmup_steps,
        "ss_max_grad_norm": spec.max_grad_norm,
        "ss_mixed_precision": spec.mixed_precision,
        "ss_fp8_base": True if spec.base_quantization is BaseQuantization.FP8 else None,
        "ss_optimizer": OPTIMIZER_CLASSES[spec.optimizer],
        "ss_min_snr_gamma": spec.snr_gamma,
        "ss_debiased_estimation": spec.debiased_estimation_loss or None,
        "ss_loss_type": str(spec.loss_type),
        "ss_huber_schedule": str(spec.huber_schedule) if spec.loss_type in PSEUDO_HUBER else None,
        "ss_huber_c": spec.huber_c if spec.loss_type in PSEUDO_HUBER else None,
        "ss_noise_offset": spec.noise_offset or None,
        "ss_zero_terminal_snr": spec.rescale_betas_zero_snr,
        "ss_prior_loss_weight": spec.prior_loss_weight if spec.with_prior_preservation else None,
        "ss_resolution": f"({spec.resolution}, {spec.resolution})",
        "ss_seed": spec.seed,
    }


def _modelspec(facts: LoraFacts, data_sha256: str) -> dict[str, Any]:
    return {
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.architecture": f"{facts.family.architecture}/lora",
        "modelspec.implementation": facts.family.implementation,
        "modelspec.title": facts.output_name,
        "modelspec.trigger_phrase": facts.trigger or None,
        "modelspec.resolution": f"{facts.spec.resolution}x{facts.spec.resolution}",
        "modelspec.prediction_type": "v" if facts.prediction_type == "v_prediction" else "epsilon",
        "modelspec.hash_sha256": f"0x{data_sha256}",
    }


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False) if isinstance(value, dict) else str(value)


def _tags(captions: Iterable[str]) -> dict[str, int]:
    """Count the comma-separated parts, in lower case, as kohya's trainer counts them."""
    parts = (part.strip().lower() for caption in captions for part in caption.split(","))
    return dict(sorted(Counter(part for part in parts if part).items()))


def public_name(model: str) -> str:
    """Return a hub id unchanged, and only the last part of a folder's path: the rest is private and varies by
    node."""
    return PurePath(model).name if model.startswith(("/", ".", "~")) or model.count("/") > 1 else model
