"""ai-toolkit: a job of one process that trains a LoRA."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from giornata.foreign_configs import layers
from giornata.foreign_configs.account import Account, Reading, agreed, is_off, listed, side_of
from giornata.foreign_configs.ai_toolkit_keys import DEFAULTS, NO_MEANING, NOT_HERE, SAME
from giornata.foreign_configs.optimizers import take_optimizer
from giornata.foreign_configs.prompts import prompts_of
from giornata.pictures.subsets import Subset

TOOL = "ai-toolkit"
LEAST_OF_PRODIGY = 0.1
_TRAINERS = frozenset({"sd_trainer", "ui_trainer", "diffusion_trainer"})
_SCHEDULES = frozenset({"constant", "constant_with_warmup", "cosine"})
_SAME_NOISE = frozenset({"ddpm", "ddim"})
_OF_A_FOLDER = (
    *("folder_path", "dataset_path", "caption_ext", "caption_type"),
    *("default_caption", "trigger_word", "num_repeats", "is_reg", "resolution"),
)
_TRIGGER = "[trigger]"
_FAMILIES = frozenset({"sdxl", "sd1", "sd15"})
_ONE_A_JOB = "the datasets say {values}, and a job has one (with --ignore: the first)"


def is_ai_toolkit_file(content: Any) -> bool:
    """Return True when the content is a job of ai-toolkit."""
    return isinstance(content, dict) and "job" in content and isinstance(content.get("config"), dict)


def read_ai_toolkit(content: Mapping[str, Any]) -> Reading:
    """The first process of the job."""
    config = content["config"]
    processes = [each for each in listed(config.get("process")) if isinstance(each, dict)]
    process = processes[0] if processes else {}
    datasets = [each for each in listed(process.get("datasets")) if isinstance(each, dict)]
    subject = [each for each in datasets if each.get("is_reg") is not True] or datasets
    flat, disputed = _flat(process), _disputed(subject)
    account = Account(given=flat | _of_datasets(subject), defaults=DEFAULTS)
    if process.get("type") not in _TRAINERS or len(processes) > 1:
        account.refuse("type", "give one process of type sd_trainer; others are not supported")
    account.take_as_is(SAME)
    _take_network(account)
    _take_model(account)
    _take_training(account)
    sides = _take_sizes(account, datasets)
    _take_results(account, config)
    for key, why in NOT_HERE.items():
        account.without_equal(key, why)
    for key, values in disputed.items():
        account.refuse(key, _ONE_A_JOB.format(values=values))
    if {_extension(each) for each in datasets} - {"txt", "caption"}:
        account.refuse("datasets.caption_ext", "captions must be in text files beside the pictures")
    if account.value("datasets.batch_size") is not None:
        account.take("datasets.batch_size", "train_batch_size", account.value("datasets.batch_size"))
    classes = [each for each in datasets if each not in subject]
    if classes:
        account.take("datasets.is_reg", "with_prior_preservation", True)
        if classes[0].get("default_caption"):
            account.take("datasets.is_reg", "class_prompt", classes[0]["default_caption"])
    word = str(process.get("trigger_word") or "")
    account.seen.add("trigger_word")
    account.seen.update(f"datasets.{name}" for name in _OF_A_FOLDER)  # they show in the folders
    account.leave(*NO_MEANING)
    return account.reading(
        TOOL,
        subsets=tuple(_subset(each, word, side) for each in subject if _folder(each) for side in sides(each)),
        class_subsets=tuple(_subset(each, word, side) for each in classes if _folder(each) for side in sides(each)),
    )


def _flat(process: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for section, inner in process.items():
        if section == "datasets":
            continue
        if isinstance(inner, dict):
            flat |= {f"{section}.{name}": value for name, value in inner.items()}
        else:
            flat[section] = inner
    if "network.rank" in flat:
        flat["network.linear"] = flat.pop("network.rank")
    if "network.alpha" in flat:
        flat.setdefault("network.linear_alpha", flat.pop("network.alpha"))
    return flat


def _of_datasets(datasets: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the datasets' options under `datasets.KEY`; the first dataset with a key gives the value."""
    found: dict[str, Any] = {}
    for dataset in datasets:
        for key, value in dataset.items():
            found.setdefault(f"datasets.{key}", value)
    return found


def _disputed(datasets: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    keys = dict.fromkeys(key for dataset in datasets for key in dataset if key not in _OF_A_FOLDER)
    found = {}
    for key in keys:
        values = [dataset.get(key, DEFAULTS.get(f"datasets.{key}")) for dataset in datasets]
        if not agreed(values)[0] and f"datasets.{key}" not in NO_MEANING:
            found[f"datasets.{key}"] = " and ".join(dict.fromkeys(map(str, values)))
    return found


def _folder(dataset: Mapping[str, Any]) -> str | None:
    return dataset.get("folder_path") or dataset.get("dataset_path")


def _subset(dataset: Mapping[str, Any], word: str, side: int | None) -> Subset:
    extension = _extension(dataset)
    caption = dataset.get("default_caption")
    return Subset(
        path=Path(str(_folder(dataset))),
        repeats=int(dataset.get("num_repeats") or 1),
        caption=str(caption) if caption else None,
        caption_extension=f".{extension}",
        trigger=str(dataset.get("trigger_word") or word) if dataset.get("is_reg") is not True else "",
        resolution=side,
    )


def _extension(dataset: Mapping[str, Any]) -> str:
    return str(dataset.get("caption_type") or dataset.get("caption_ext") or "txt").removeprefix(".")


def _take_network(account: Account) -> None:
    kind = str(account.value("network.type")).lower()
    account.take("network.type", "adapter_type", "lora" if kind == "locon" else kind)
    if kind == "lokr":
        if account.value("network.lokr_full_rank") is not False:
            account.refuse(
                "network.lokr_full_rank",
                "set lokr_full_rank to false, and linear to the rank",
            )
        if account.value("network.lokr_factor") is not None:
            account.take("network.lokr_factor", "decompose_factor", account.value("network.lokr_factor"))
    family = account.value("model.arch")
    xl = account.value("model.is_xl") is True or family == "sdxl"
    targets = layers.EVERY_LINEAR if xl else layers.EVERY_LINEAR[:-2]
    conv = account.value("network.conv")
    if not is_off(conv):
        within = (*layers.CONVOLUTIONS, "conv_in", "conv_out")
        targets = (*targets, *within)
        alpha = account.value("network.conv_alpha") or conv
        if conv != account.value("network.linear"):
            account.take("network.conv", "rank_pattern", dict.fromkeys(within, conv))
        if alpha != account.value("network.linear_alpha"):
            account.take("network.conv", "alpha_pattern", dict.fromkeys(within, alpha))
        account.leave("network.conv_alpha")
    account.leave("network.conv")
    account.take("network.type", "target_modules", targets)
    account.take("network.type", "text_encoder_target_modules", layers.TEXT)
    if not is_off(account.value("network.dropout")):
        account.take("network.dropout", "network_dropout", account.value("network.dropout"))
    account.leave("network.dropout")
    if family is not None and str(family) not in _FAMILIES:
        account.refuse("model.arch", "only SDXL and Stable Diffusion 1.5 are supported")


def _take_model(account: Account) -> None:
    if account.value("model.is_v_pred") is True:
        account.take("model.is_v_pred", "prediction_type", "v_prediction")
    account.leave("model.is_v_pred")
    if account.value("model.quantize") is True:
        if str(account.value("model.qtype") or "qfloat8") in {"qfloat8", "float8"}:
            account.take("model.quantize", "base_quantization", "fp8", "with a scale for each output")
        else:
            account.refuse("model.qtype", "a base model is held in 16 or 8 bits: set qfloat8")
    dtype = str(account.value("train.dtype"))
    names = {"fp32": "no", "float32": "no", "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16"}
    account.take("train.dtype", "mixed_precision", names.get(dtype, dtype))


def _take_training(account: Account) -> None:
    rate = account.value("train.lr")
    own = account.value("train.unet_lr")
    text = account.value("train.text_encoder_lr")
    prodigy = str(account.value("train.optimizer")).lower().startswith("prodigy")
    rates = (("train.unet_lr", own, "learning_rate"), ("train.text_encoder_lr", text, "text_encoder_lr"))
    for key, value, setting in rates:
        found = float(rate if value is None else value)
        low = prodigy and found < LEAST_OF_PRODIGY
        key_told = "train.lr" if value is None else key
        account.take(key_told, setting, 1.0 if low else found, "as ai-toolkit does with Prodigy" if low else "")
    if account.value("train.train_unet") is False:
        account.refuse("train.train_unet", "the UNet is always trained")
    accumulated = [account.value(f"train.gradient_accumulation{end}") or 1 for end in ("", "_steps")]
    which = "train.gradient_accumulation" if accumulated[0] != 1 else "train.gradient_accumulation_steps"
    account.take(which, "gradient_accumulation_steps", max(int(each) for each in accumulated))
    account.leave("train.gradient_accumulation", "train.gradient_accumulation_steps", "train.lr")
    if str(account.value("train.noise_scheduler")) not in _SAME_NOISE:
        account.refuse("train.noise_scheduler", "SDXL and Stable Diffusion 1.5 are trained by ddpm")
    account.leave("train.noise_scheduler")
    gammas = [key for key in ("train.min_snr_gamma", "train.snr_gamma") if not is_off(account.value(key))]
    if gammas == ["train.min_snr_gamma"]:
        account.take("train.min_snr_gamma", "snr_gamma", account.value("train.min_snr_gamma"))
    elif gammas:
        account.refuse("train.snr_gamma", "ai-toolkit weights snr_gamma differently; use min_snr_gamma")
    account.leave("train.min_snr_gamma", "train.snr_gamma")
    account.take("train.max_denoising_steps", "max_timestep", int(account.value("train.max_denoising_steps")) + 1)
    if str(account.value("train.content_or_style") or "balanced") != "balanced":
        account.refuse("train.content_or_style", "timesteps are drawn evenly: set balanced")
    loss = {"mse": "l2", "mae": "l1", "l1": "l1"}.get(str(account.value("train.loss_type") or "mse"))
    if loss is None:
        account.refuse("train.loss_type", "only the losses mse and mae are supported")
    else:
        account.take("train.loss_type", "loss_type", loss)
    account.leave("train.content_or_style", "train.loss_type")
    average = account.value("train.ema_config")
    if isinstance(average, dict) and average.get("use_ema"):
        account.take("train.ema_config", "use_ema", True)
        account.take("train.ema_config", "ema_decay", average.get("ema_decay", 0.999))
    account.leave("train.ema_config")
    _take_optimizer(account)


def _take_optimizer(account: Account) -> None:
    arguments = account.value("train.optimizer_params")
    kind = str(account.value("train.optimizer")).lower()
    adam = {"eps": 1e-6} if kind.startswith(("adam", "prodigy")) else {}
    adafactor = {"relative_step": False, "scale_parameter": False} if kind == "adafactor" else {}
    take_optimizer(
        account,
        "train.optimizer",
        "train.optimizer_params",
        arguments if isinstance(arguments, dict) else {},
        **adam,
        **adafactor,
    )
    name = str(account.value("train.lr_scheduler"))
    parameters = account.value("train.lr_scheduler_params")
    if name not in _SCHEDULES:
        account.refuse("train.lr_scheduler", f"not supported; supported: {', '.join(sorted(_SCHEDULES))}")
    else:
        account.take("train.lr_scheduler", "lr_scheduler", name)
    if name == "constant_with_warmup":
        steps = parameters.get("num_warmup_steps", 1000) if isinstance(parameters, dict) else 1000
        account.take("train.lr_scheduler", "lr_warmup_steps", steps)
        account.leave("train.lr_scheduler_params")


def _take_sizes(
    account: Account, datasets: Sequence[Mapping[str, Any]]
) -> Callable[[Mapping[str, Any]], Sequence[int | None]]:
    """The largest resolution becomes the job's. Returns what gives the resolutions of a dataset in pixels, at each of
    which all of its pictures are trained; None is the job's."""
    account.take("datasets.random_crop", "center_crop", account.value("datasets.random_crop") is not True)
    given = [side for dataset in datasets or [{}] for side in _listed_sides(dataset)]
    sides = [side for side in map(side_of, given) if side is not None]
    unknown = [side for side in given if side_of(side) is None]
    if unknown or not sides:
        account.take("datasets.resolution", "resolution", unknown[0] if unknown else None)
        return lambda _: (None,)
    largest, several = max(sides), len(set(sides)) > 1
    if several and account.value("datasets.buckets") is not True:
        said = ", ".join(map(str, sides))
        why = f"the file gives {said}, and only with buckets a job has several (with --ignore: the largest)"
        account.refuse("datasets.resolution", why)
        several = False
    account.take("datasets.resolution", "resolution", largest, "the largest; see the folders" if several else "")
    if not several:
        return lambda _: (None,)
    return lambda dataset: [
        side if side != largest else None for side in map(side_of, dict.fromkeys(_listed_sides(dataset)))
    ]


def _listed_sides(dataset: Mapping[str, Any]) -> list[Any]:
    return listed(dataset.get("resolution") or DEFAULTS["datasets.resolution"])


def _take_results(account: Account, config: Mapping[str, Any]) -> None:
    account.take(
        "save.dtype",
        "output_dtype",
        {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}.get(
            str(account.value("save.dtype")), str(account.value("save.dtype"))
        ),
    )
    every = account.value("save.save_every")
    if not is_off(every):
        account.take("save.save_every", "checkpointing_steps", every)
    if not is_off(account.value("save.max_step_saves_to_keep")):
        account.take(
            "save.max_step_saves_to_keep", "checkpoints_keep_latest", account.value("save.max_step_saves_to_keep")
        )
    if config.get("name"):
        named = Account(given={"config.name": config["name"]}, taken=account.taken, refused={}, left_out={})
        named.take("config.name", "output_name", config["name"])
    prompts, note = prompts_of(account.value("sample.prompts") or account.value("sample.samples") or [])
    prompts = [prompt.replace(_TRIGGER, str(account.value("trigger_word") or "")) for prompt in prompts]
    if prompts and account.value("train.disable_sampling") is not True:
        account.take("sample.prompts", "sample_prompts", prompts, note)
        for key, setting in (("sample_every", "validation_steps"), ("guidance_scale", "sample_guidance_scale")):
            if not is_off(account.value(f"sample.{key}")):
                account.take(f"sample.{key}", setting, account.value(f"sample.{key}"))
        if not is_off(account.value("sample.sample_steps")):
            account.take("sample.sample_steps", "sample_steps", min(int(account.value("sample.sample_steps")), 50))
