"""OneTrainer: a run's configuration, as its GUI and its presets save it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from giornata.foreign_configs import layers
from giornata.foreign_configs.account import Account, Reading, is_off
from giornata.foreign_configs.onetrainer_concepts import read_concepts, take_concepts
from giornata.foreign_configs.onetrainer_keys import DEFAULTS, NO_MEANING_ENDS, NO_MEANING_PREFIXES, NOT_HERE, SAME
from giornata.foreign_configs.optimizers import take_optimizer
from giornata.foreign_configs.prompts import prompts_of

TOOL = "OneTrainer"
NO_CLIPPING = 1e6
_FAMILIES = {"STABLE_DIFFUSION_15": False, "STABLE_DIFFUSION_XL_10_BASE": True}
_FILTERS: Mapping[str, tuple[str, ...]] = {"attn-mlp": layers.TRANSFORMER, "attn-only": layers.ATTENTION}
_FULL = (*layers.EVERY_LINEAR, *layers.CONVOLUTIONS, "conv_in", "conv_out")
_PRECISIONS = {"FLOAT_16": "float16", "FLOAT_32": "float32", "BFLOAT_16": "bfloat16"}
_SCHEDULES = {
    "CONSTANT": "constant",
    "LINEAR": "linear",
    "COSINE": "cosine",
    "COSINE_WITH_HARD_RESTARTS": "cosine_with_restarts",
}
_SHARED_OPTIMIZER_KEYS = frozenset({"optimizer", "stochastic_rounding", "fused_back_pass", "use_triton", "compile"})
_ADAMW_DECAY = 0.01


def is_onetrainer_file(content: Any) -> bool:
    """Return True when the content is the configuration of a OneTrainer run."""
    return isinstance(content, dict) and "training_method" in content


def read_onetrainer(content: Mapping[str, Any]) -> Reading:
    """The whole configuration; concepts and prompts that lie in files of their own are read with it."""
    account = Account(given=_flat(content), defaults=DEFAULTS)
    family = _FAMILIES.get(str(account.value("model_type")))
    if family is None:
        account.refuse("model_type", "only SDXL and Stable Diffusion 1.5 are supported, without inpainting")
    if account.value("training_method") != "LORA":
        account.refuse("training_method", "only LORA is supported")
    account.leave("model_type", "training_method")
    account.take_as_is(SAME)
    _take_adapter(account, xl=family is not False)
    _take_rates(account, xl=family is not False)
    _take_schedule(account)
    _take_optimizer(account, content.get("optimizer"))
    _take_objective(account)
    _take_precision(account)
    _take_results(account, content)
    for key, why in NOT_HERE.items():
        account.without_equal(key, why)
    concepts = read_concepts(content)
    subsets, classes = take_concepts(account, concepts)
    rest = [key for key in account.given if key not in account.seen]
    account.leave(*(key for key in rest if key.startswith(NO_MEANING_PREFIXES) or key.endswith(NO_MEANING_ENDS)))
    start = account.value("lora_model_name")
    return account.reading(
        TOOL, subsets=subsets, class_subsets=classes, init_lora=None if start is None else Path(str(start))
    )


def _flat(content: Mapping[str, Any]) -> dict[str, Any]:
    """Parts of the model with a dot; the optimizer's own apart."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict) and key not in {"optimizer", "optimizer_defaults", "cloud", "secrets"}:
            flat |= {f"{key}.{name}": inner for name, inner in value.items() if not isinstance(inner, dict)}
        elif key == "optimizer" and isinstance(value, dict):
            flat["optimizer.optimizer"] = value.get("optimizer")
        else:
            flat[key] = value
    return flat


def _take_adapter(account: Account, *, xl: bool) -> None:
    kind = str(account.value("peft_type"))
    account.take("peft_type", "adapter_type", kind.lower())
    account.take_as_is({"lora_alpha": "alpha"})
    if kind == "LOKR":
        account.take("lokr_dim", "rank", account.value("lokr_dim") or 16)
        account.take_as_is({"lokr_decompose_both": "decompose_both", "lokr_decompose_factor": "decompose_factor"})
        account.leave("lora_rank", "lora_decompose")
    else:
        account.take_as_is({"lora_rank": "rank", "lora_decompose": "use_dora"})
    preset, own = str(account.value("layer_filter_preset")), account.value("layer_filter")
    known = {"attn-mlp": "attentions", "attn-only": "attn", "full": None}
    if preset not in known or own not in (None, known[preset]):
        account.refuse("layer_filter", "give the ends of the layers' names instead: --set target_modules=to_q,to_k,…")
    else:
        full = _FULL if xl else tuple(name for name in _FULL if not name.startswith("add_embedding"))
        account.take("layer_filter_preset", "target_modules", _FILTERS.get(preset, full))
    account.leave("layer_filter", "layer_filter_preset")
    account.take("text_encoder.train", "text_encoder_target_modules", layers.TEXT)
    if not is_off(account.value("dropout_probability")):
        account.take("dropout_probability", "network_dropout", account.value("dropout_probability"))
    account.leave("dropout_probability")
    if str(account.value("lora_weight_dtype") or "FLOAT_32") != "FLOAT_32":
        account.refuse("lora_weight_dtype", "the adapter's weights are always float32: set FLOAT_32")
    account.leave("lora_weight_dtype")


def _take_rates(account: Account, *, xl: bool) -> None:
    general = account.value("learning_rate")
    key = "learning_rate" if account.implied("unet.learning_rate") else "unet.learning_rate"
    account.take(key, "learning_rate", account.value(key))
    if account.value("unet.train") is False:
        account.refuse("unet.train", "the UNet is always trained")
    parts = ("text_encoder", "text_encoder_2") if xl else ("text_encoder",)
    trained = [account.value(f"{part}.train") is not False for part in parts]
    rates = [float(account.value(f"{part}.learning_rate") or general) for part in parts]
    account.leave("unet.train", "text_encoder_2.train", "text_encoder_2.learning_rate", "learning_rate")
    if len(set(trained)) > 1:
        account.refuse("text_encoder_2.train", "train both text encoders, or neither")
    account.take("text_encoder.train", "train_text_encoder", trained[0])
    if not trained[0]:
        account.leave("text_encoder.learning_rate")
    elif len(set(rates)) == 1:
        key = "text_encoder.learning_rate"
        account.take("learning_rate" if account.implied(key) else key, "text_encoder_lr", rates[0])
    else:
        account.take("text_encoder_2.learning_rate", "text_encoder_learning_rates", rates)
    if account.value("text_encoder.stop_training_after_unit") == "STEP":
        after = account.value("text_encoder.stop_training_after")
        account.take("text_encoder.stop_training_after", "stop_text_encoder_training", after)
    elif account.value("text_encoder.stop_training_after_unit") not in (None, "NEVER"):
        account.refuse(
            "text_encoder.stop_training_after",
            "give the end in steps (unit STEP)",
        )
    account.leave("text_encoder.stop_training_after", "text_encoder.stop_training_after_unit")


def _take_schedule(account: Account) -> None:
    name = str(account.value("learning_rate_scheduler"))
    warmup = float(account.value("learning_rate_warmup_steps") or 0)
    ours = _SCHEDULES.get(name)
    if ours is None:
        account.refuse("learning_rate_scheduler", f"not supported; supported: {', '.join(_SCHEDULES)}")
    elif ours == "constant" and warmup > 0:
        account.take("learning_rate_scheduler", "lr_scheduler", "constant_with_warmup")
    else:
        account.take("learning_rate_scheduler", "lr_scheduler", ours)
    if warmup > 1:
        account.take("learning_rate_warmup_steps", "lr_warmup_steps", int(warmup))
    elif warmup > 0:
        account.refuse("learning_rate_warmup_steps", "a share of the steps is unknown with epochs; give the steps")
    account.leave("learning_rate_warmup_steps")
    cycles = account.value("learning_rate_cycles")
    account.take("learning_rate_cycles", "lr_num_cycles", int(cycles) if float(cycles).is_integer() else cycles)
    if name != "CONSTANT":
        account.without_equal("learning_rate_min_factor", "schedules end at zero")
    account.leave("learning_rate_min_factor")
    if str(account.value("learning_rate_scaler") or "NONE") != "NONE":
        account.refuse("learning_rate_scaler", "scaled rates are not supported; give the final rate as learning_rate")
    account.leave("learning_rate_scaler")


def _take_optimizer(account: Account, given: Any) -> None:
    arguments = {
        name: value
        for name, value in (given if isinstance(given, dict) else {}).items()
        if value is not None and name not in _SHARED_OPTIMIZER_KEYS and (not is_off(value) or name == "weight_decay")
    }
    kind = str(account.value("optimizer.optimizer"))
    arguments = _joined(arguments, kind)
    decay = {"weight_decay": _ADAMW_DECAY} if kind.endswith(("ADAMW", "ADAMW_8BIT", "CAME")) else {}
    if kind == "ADAFACTOR":
        decay = {"relative_step": False, "scale_parameter": False}
    take_optimizer(account, "optimizer.optimizer", "optimizer", arguments, **decay)
    norm = account.value("clip_grad_norm")
    account.take("clip_grad_norm", "max_grad_norm", NO_CLIPPING if is_off(norm) else norm)


def _joined(arguments: dict[str, Any], kind: str) -> dict[str, Any]:
    """beta1, beta2 and eps, eps2 of optimizers whose packages take several in one, with the tool's defaults."""
    usual: dict[str, dict[str, tuple[float, ...]]] = {
        "LION": {"betas": (0.9, 0.99)},
        "CAME": {"betas": (0.9, 0.999, 0.9999), "eps": (1e-30, 1e-16)},
        "ADAFACTOR": {"eps": (1e-30, 1e-3)},
    }
    rest = dict(arguments)
    for name, values in usual.get(kind, {}).items():
        parts = ("beta1", "beta2", "beta3") if name == "betas" else ("eps", "eps2")
        said = [rest.pop(part, None) for part in parts[: len(values)]]
        rest[name] = tuple(value if own is None else own for own, value in zip(said, values, strict=True))
    return rest


def _take_objective(account: Account) -> None:
    weighting = str(account.value("loss_weight_fn"))
    if weighting == "MIN_SNR_GAMMA":
        account.take("loss_weight_strength", "snr_gamma", account.value("loss_weight_strength"))
    elif weighting == "DEBIASED_ESTIMATION":
        account.take("loss_weight_fn", "debiased_estimation_loss", True)
    elif weighting != "CONSTANT":
        account.refuse("loss_weight_fn", "supported: CONSTANT, MIN_SNR_GAMMA and DEBIASED_ESTIMATION")
    account.leave("loss_weight_fn", "loss_weight_strength")
    if float(account.value("mse_strength")) != 1:
        account.refuse("mse_strength", "a job has one loss at full strength: set mse_strength to 1")
    account.leave("mse_strength")
    for key, kind in (("force_v_prediction", "v_prediction"), ("force_epsilon_prediction", "epsilon")):
        if account.value(key) is True:
            account.take(key, "prediction_type", kind)
        account.leave(key)
    for key, setting in (("min_noising_strength", "min_timestep"), ("max_noising_strength", "max_timestep")):
        account.take(key, setting, int(float(account.value(key)) * 1000))
    if account.value("timestep_distribution") != "UNIFORM":
        account.refuse("timestep_distribution", "timesteps are drawn evenly: set UNIFORM")
    account.leave("timestep_distribution")
    if account.value("masked_training") is True:
        account.take("masked_training", "masked_loss", True)
        for key in ("unmasked_probability", "unmasked_weight"):
            account.without_equal(key, "what the mask leaves out is never learned")
        if account.value("normalize_masked_area_loss") is not True:
            account.refuse("normalize_masked_area_loss", "the loss is always averaged over the mask")
    account.leave("masked_training", "unmasked_probability", "unmasked_weight", "normalize_masked_area_loss")
    _take_average(account)


def _take_average(account: Account) -> None:
    if account.value("ema") != "OFF":
        account.take("ema", "use_ema", True)
        account.take_as_is({"ema_decay": "ema_decay"})
        if account.value("ema_update_step_interval") != 1:
            account.refuse("ema_update_step_interval", "the average is updated at every step: set 1")
    account.leave("ema", "ema_decay", "ema_update_step_interval")


def _take_precision(account: Account) -> None:
    precision = str(account.value("train_dtype"))
    account.take("train_dtype", "mixed_precision", {"FLOAT_32": "no", "FLOAT_16": "fp16"}.get(precision, "bf16"))
    written = str(account.value("output_dtype"))
    account.take("output_dtype", "output_dtype", _PRECISIONS.get(written, written))
    account.take("gradient_checkpointing", "gradient_checkpointing", account.value("gradient_checkpointing") != "OFF")
    weights = str(account.value("unet.weight_dtype") or "")
    if weights in {"FLOAT_8", "INT_8", "FLOAT_W8A8", "INT_W8A8"}:
        account.take("unet.weight_dtype", "base_quantization", "fp8" if weights.startswith("FLOAT") else "int8")
    elif weights.startswith(("NFLOAT_4", "GGUF")):
        account.refuse("unet.weight_dtype", "a base model is held in 16 or in 8 bits")
    if name := account.value("vae.model_name"):
        account.take("vae.model_name", "pretrained_vae_model_name_or_path", name)


def _take_results(account: Account, content: Mapping[str, Any]) -> None:
    if account.value("save_every_unit") == "STEP" and not is_off(account.value("save_every")):
        account.take("save_every", "checkpointing_steps", account.value("save_every"))
        account.take("save_every", "checkpoints_keep_every", account.value("save_every"))
    samples = content.get("samples")
    if samples is None and content.get("sample_definition_file_name"):
        samples = content["sample_definition_file_name"]
    wanted = [each for each in samples if each.get("enabled", True)] if isinstance(samples, list) else samples or []
    prompts, note = prompts_of(wanted)
    if prompts:
        account.take(
            "samples" if "samples" in content else "sample_definition_file_name", "sample_prompts", prompts, note
        )
        if account.value("sample_after_unit") == "STEP":
            account.take("sample_after", "validation_steps", account.value("sample_after"))
