"""The files of the kohya_ss GUI: sd-scripts' options under names and in units of its own."""

import shlex
from collections.abc import Mapping
from typing import Any

from giornata.foreign_configs.account import is_off, listed
from giornata.foreign_configs.kohya_network import parse_arguments

_RENAMED = {
    "optimizer": "optimizer_type",
    "max_resolution": "resolution",
    "lora_network_weights": "network_weights",
    "sample_every_n_epochs": "sample_every_n_epochs",
    "epoch": "max_train_epochs",
}
_NETWORKS = {
    "Standard": ("networks.lora", None),
    "LoRA-C3Lier": ("networks.lora", None),
    "Kohya LoCon": ("networks.lora", None),
    "Kohya DyLoRA": ("networks.dylora", None),
    "LoRA-FA": ("networks.lora_fa", None),
    "LyCORIS/LoCon": ("lycoris.kohya", "locon"),
    "LyCORIS/LoRA": ("lycoris.kohya", "lora"),
    "LyCORIS/LoKr": ("lycoris.kohya", "lokr"),
    "LyCORIS/LoHa": ("lycoris.kohya", "loha"),
    "LyCORIS/iA3": ("lycoris.kohya", "ia3"),
    "LyCORIS/DyLoRA": ("lycoris.kohya", "dylora"),
    "LyCORIS/GLoRA": ("lycoris.kohya", "glora"),
    "LyCORIS/Diag-OFT": ("lycoris.kohya", "diag-oft"),
    "LyCORIS/BOFT": ("lycoris.kohya", "boft"),
}
_ONLY_3X3 = frozenset({"LoRA-C3Lier", "Kohya LoCon"})
_ARGUMENTS = ("rank_dropout", "module_dropout", "down_lr_weight", "mid_lr_weight", "up_lr_weight", "block_dims")
_LYCORIS_ARGUMENTS = ("factor", "decompose_both", "train_norm", "rescaled", "dora_wd", "use_scalar")
_NO_MEANING = frozenset(
    [
        "LoRA_type",
        "additional_parameters",
        "block_alphas",
        "block_lr_zero_threshold",
        "conv_alpha",
        "conv_dim",
        "conv_alphas",
        "conv_dims",
        "conv_block_alphas",
        "conv_block_dims",
        "constrain",
        "lr_warmup",
        "max_train_epochs",
        "no_token_padding",
        "noise_offset_type",
        "num_cpu_threads_per_process",
        "num_machines",
        "num_processes",
        "sdxl_cache_text_encoder_outputs",
        "sdxl_no_half_vae",
        "stop_text_encoder_training_pct",
        "train_on_input",
        "unit",
        "use_cp",
        "use_tucker",
        "bypass_mode",
        "LyCORIS_preset",
        "gpu_ids",
        "main_process_port",
        "multi_gpu",
        "dynamo_mode",
        "dynamo_use_dynamic",
        "dynamo_use_fullgraph",
        "extra_accelerate_launch_args",
        "model_list",
        "enable_bucket_list",
        "wandb_api_key",
        "log_tracker_name_list",
        "dataset_config_list",
    ]
)
_OTHER_FAMILIES = ("flux", "sd3", "t5xxl", "clip_", "mmdit", "lumina", "anima", "hunyuan", "gemma", "train_blocks")


def is_gui_file(content: Mapping[str, Any]) -> bool:
    """Return True when the GUI has written it."""
    return "LoRA_type" in content


def gui_options(content: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the GUI would start sd-scripts with."""
    given = {key: value for key, value in content.items() if value not in (None, "")}
    module, algo = _NETWORKS.get(str(given.get("LoRA_type")), (str(given.get("LoRA_type")), None))
    kept = {key: value for key, value in given.items() if not _is_own(key)}
    options = {_RENAMED.get(key, key): value for key, value in kept.items()}
    options |= {"network_module": module, "network_args": _arguments(given, algo)}
    options |= {"optimizer_args": parse_arguments(given.get("optimizer_args"))}
    for key in ("text_encoder_lr", "unet_lr", "seed", "clip_skip", "max_token_length", "keep_tokens"):
        options |= {key: _number(options[key])} if key in options else {}
    if not is_off(given.get("max_train_epochs")):
        options["max_train_epochs"] = _number(given["max_train_epochs"])
    if not is_off(_number(options.get("max_train_steps"))):
        options.pop("max_train_epochs", None)
    else:
        options.pop("max_train_steps", None)
    _take_noise(given, options)
    options |= command_options(str(given.get("additional_parameters") or ""))
    if percent := float(_number(given.get("lr_warmup")) or 0):
        options["lr_warmup_steps"] = percent / 100
    for key in ("stop_text_encoder_training_pct", "stop_text_encoder_training"):
        if not is_off(_number(given.get(key))):
            options[key] = given[key]
        else:
            options.pop(key, None)
    return options


def command_options(line: str) -> dict[str, Any]:
    """The options of a command line: --name, --name=value, --name value, or several values."""
    options: dict[str, Any] = {}
    name = ""
    for word in shlex.split(line):
        if word.startswith("--"):
            name, equals, value = word.removeprefix("--").partition("=")
            options[name] = _number(value) if equals else True
        elif name:
            before = options[name]
            options[name] = _number(word) if before is True else [*listed(before), _number(word)]
    return options


def _is_own(key: str) -> bool:
    """Return True when the key is read in another way, or is for nothing that is trained here."""
    return key in _NO_MEANING or key in (*_ARGUMENTS, *_LYCORIS_ARGUMENTS) or key.startswith(_OTHER_FAMILIES)


def _arguments(given: Mapping[str, Any], algo: str | None) -> dict[str, Any]:
    arguments = {key: _number(given[key]) for key in _ARGUMENTS if not is_off(_number(given.get(key)))}
    if algo is not None or given.get("LoRA_type") in _ONLY_3X3:
        sizes = {key: _number(given.get(key)) for key in ("conv_dim", "conv_alpha")}
        arguments |= {key: value for key, value in sizes.items() if not is_off(value)}
    if algo is not None:
        found = {key: _number(given[key]) for key in _LYCORIS_ARGUMENTS if not is_off(_number(given.get(key)))}
        arguments |= {"algo": algo, "preset": given.get("LyCORIS_preset") or "full", **found}
    return arguments


def _take_noise(given: Mapping[str, Any], options: dict[str, Any]) -> None:
    """The GUI passes on the kind of noise that is chosen, and not the other."""
    if given.get("noise_offset_type", "Original") == "Multires":
        unused: tuple[str, ...] = ("noise_offset", "adaptive_noise_scale", "noise_offset_random_strength")
    else:
        unused = ("multires_noise_iterations", "multires_noise_discount")
    for key in unused:
        options.pop(key, None)


def _number(value: Any) -> Any:
    """A number that the GUI keeps as a text."""
    if not isinstance(value, str):
        return value
    try:
        return float(value) if "." in value or "e" in value.lower() else int(value)
    except ValueError:
        return value
