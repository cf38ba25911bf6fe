"""sd-scripts: the options of train_network.py and sdxl_train_network.py, by name."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from giornata.foreign_configs.account import NONE_GIVEN, Account, Reading, agreed, is_off, listed
from giornata.foreign_configs.kohya_keys import DEFAULTS, NO_MEANING, NOT_HERE, SAME, WHERE_ON
from giornata.foreign_configs.kohya_network import parse_arguments, take_network
from giornata.foreign_configs.optimizers import plain_name, take_optimizer
from giornata.foreign_configs.prompts import prompts_of
from giornata.pictures.kohya_folders import kohya_folders
from giornata.pictures.subsets import Subset

TOOL = "sd-scripts"
NO_CLIPPING = 1e6
_PRECISIONS = {"float": "float32", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_USUAL_LENGTH = 75


def read_kohya(
    given: Mapping[str, Any],
    *,
    subsets: tuple[Subset, ...] = (),
    class_subsets: tuple[Subset, ...] = (),
    disputed: Mapping[str, str] = NONE_GIVEN,
    file: str = TOOL,
) -> Reading:
    """The options of one run. `subsets` are the folders of a dataset file, which win over train_data_dir; `disputed`
    are the options that it gives to its folders one by one, and why that cannot be; `file` says what was read."""
    account = Account(given=given, defaults=DEFAULTS)
    _take_model(account)
    account.take_as_is(SAME)
    for key, setting in WHERE_ON.items():
        if is_off(account.value(key)):
            account.leave(key)
        else:
            account.take(key, setting, account.value(key))
    if "multires_noise_iterations" in account.taken:
        account.take("multires_noise_discount", "multires_noise_discount", account.value("multires_noise_discount"))
    take_network(account)
    _take_rates(account)
    _take_optimizer(account)
    _take_schedule(account)
    _take_pictures(account)
    _take_results(account)
    for key, why in NOT_HERE.items():
        account.without_equal(key, why)
    account.leave(*NO_MEANING, "multires_noise_discount")
    for key, why in disputed.items():
        account.refuse(key, why)
    folder, classes = _folders(account, subsets, class_subsets)
    weights = account.value("network_weights")
    words = [account.value(key) for key in ("caption_extension", "caption_prefix", "caption_suffix")]
    reading = account.reading(
        file,
        subsets=subsets,
        class_subsets=class_subsets,
        directory=folder,
        class_directory=classes,
        init_lora=None if weights is None else Path(str(weights)),
    )
    return _with_words(reading, *words)


def _take_model(account: Account) -> None:
    name = account.value("pretrained_model_name_or_path")
    if name is not None:
        account.take("pretrained_model_name_or_path", "pretrained_model_name_or_path", name)
    if not is_off(account.value("v_parameterization")):
        account.take("v_parameterization", "prediction_type", "v_prediction")
    account.leave("v_parameterization")
    skip = account.value("clip_skip")
    xl = account.value("sdxl") is True or "xl" in str(name).lower()
    if xl or skip in (None, 1, "1") or is_off(skip):
        account.leave("clip_skip", "sdxl")
    else:
        why = (
            "captions are encoded by the layer that the model's pipeline reads (for SDXL, sd-scripts ignores the key)"
        )
        account.refuse("clip_skip", why)
    length = account.value("max_token_length")
    if length is not None and int(length) != _USUAL_LENGTH:
        account.take("max_token_length", "max_token_length", int(length))
    account.leave("max_token_length", "sdxl")


def _take_rates(account: Account) -> None:
    """Take one rate for the UNet, and one or several for the text encoders, which sd-scripts trains by default."""
    general = account.value("learning_rate")
    key = "learning_rate" if account.implied("unet_lr") else "unet_lr"
    account.take(key, "learning_rate", account.value(key))
    rates = [float(rate) for rate in listed(account.value("text_encoder_lr"))]
    trained = account.value("network_train_unet_only") is not True and (not rates or any(rates))
    key = "network_train_unet_only" if rates or not account.implied("network_train_unet_only") else "network_module"
    account.take(key, "train_text_encoder", trained)
    equal, rate = agreed(rates or [float(general)])
    if not trained:
        account.leave("text_encoder_lr", "learning_rate")
    elif equal:
        account.take("text_encoder_lr" if rates else "learning_rate", "text_encoder_lr", rate)
    else:
        account.take("text_encoder_lr", "text_encoder_learning_rates", rates)
    account.seen.update({"learning_rate", "network_train_unet_only"})


def _take_optimizer(account: Account) -> None:
    arguments = parse_arguments(account.value("optimizer_args"))
    if account.value("use_8bit_adam") is True and account.implied("optimizer_type"):
        account.take("use_8bit_adam", "optimizer", "adamw8bit")
    account.leave("use_8bit_adam")
    take_optimizer(account, "optimizer_type", "optimizer_args", arguments)
    norm = account.value("max_grad_norm")
    if norm is not None:
        note = "nothing is clipped" if is_off(norm) else ""
        account.take("max_grad_norm", "max_grad_norm", NO_CLIPPING if is_off(norm) else norm, note)


def _take_schedule(account: Account) -> None:
    epochs = account.value("max_train_epochs")
    if is_off(epochs):
        account.take("max_train_steps", "max_train_steps", account.value("max_train_steps"))
    else:
        account.take("max_train_epochs", "num_train_epochs", epochs)
    account.leave("max_train_epochs", "max_train_steps")
    if plain_name(account.value("optimizer_type")) == "adamwschedulefree":  # sd-scripts makes no schedule then
        account.leave("lr_scheduler", "lr_warmup_steps", "lr_scheduler_num_cycles", "lr_scheduler_power")
        return
    account.take("lr_scheduler", "lr_scheduler", account.value("lr_scheduler"))
    account.take_as_is({"lr_scheduler_num_cycles": "lr_num_cycles", "lr_scheduler_power": "lr_power"})
    warmup = account.value("lr_warmup_steps")
    if is_off(warmup) or account.value("lr_scheduler") == "constant":
        account.leave("lr_warmup_steps")
    elif not 0 < float(warmup) < 1:
        account.take("lr_warmup_steps", "lr_warmup_steps", int(float(warmup)))
    elif is_off(epochs):
        steps = int(float(warmup) * int(account.value("max_train_steps")))
        account.take("lr_warmup_steps", "lr_warmup_steps", steps, "a part of max_train_steps")
    else:
        account.refuse("lr_warmup_steps", "a share of the steps is unknown with epochs; give --set lr_warmup_steps=N")


def _take_pictures(account: Account) -> None:
    account.take("random_crop", "center_crop", account.value("random_crop") is not True)
    masked = account.value("alpha_mask") is True
    if masked:
        note = "the loss is averaged over the mask here, and over the whole picture there"
        account.take("alpha_mask", "masked_loss", True, note)
    elif account.value("masked_loss") is True:
        account.refuse(
            "masked_loss", "the masks are those of conditioning_data_dir; alpha_mask takes the alpha channel"
        )
    account.leave("alpha_mask", "masked_loss")


def _take_results(account: Account) -> None:
    precision = str(account.value("save_precision"))
    account.take("save_precision", "output_dtype", _PRECISIONS.get(precision, precision))
    every = account.value("save_every_n_steps")
    if not is_off(every):
        account.take("save_every_n_steps", "checkpointing_steps", every)
        if is_off(account.value("save_last_n_steps")):
            account.take("save_every_n_steps", "checkpoints_keep_every", every)
    account.leave("save_every_n_steps")
    trackers = account.value("log_with")
    if not is_off(trackers):
        account.take("log_with", "report_to", ["tensorboard", "wandb"] if trackers == "all" else [trackers])
    account.leave("log_with")
    account.take_as_is({"log_tracker_name": "wandb_project", "wandb_run_name": "wandb_run_name"})
    prompts, note = prompts_of(account.value("sample_prompts") or [])
    if prompts:
        account.take("sample_prompts", "sample_prompts", prompts, note)
    account.leave("sample_prompts")
    if not is_off(account.value("sample_every_n_steps")):
        account.take("sample_every_n_steps", "validation_steps", account.value("sample_every_n_steps"))
    account.leave("sample_every_n_steps")


def _folders(
    account: Account, subsets: tuple[Subset, ...], class_subsets: tuple[Subset, ...]
) -> tuple[Path | None, Path | None]:
    """Return the folders of pictures and of class pictures, where no dataset file names them."""
    folder, classes = account.value("train_data_dir"), account.value("reg_data_dir")
    account.seen.add("class_tokens")
    if subsets or class_subsets:
        account.leave("train_data_dir", "reg_data_dir")
        if class_subsets:
            account.take("is_reg", "with_prior_preservation", True)
        if account.value("class_tokens") is not None:
            account.take("class_tokens", "class_prompt", account.value("class_tokens"))
        return None, None
    if classes is not None:
        account.take("reg_data_dir", "with_prior_preservation", True)
        named = kohya_folders(Path(str(classes)).glob("*"))
        if named:
            account.take("reg_data_dir", "class_prompt", named[0].caption)
    return (None if folder is None else Path(str(folder))), (None if classes is None else Path(str(classes)))


def _with_words(reading: Reading, extension: Any, prefix: Any, suffix: Any) -> Reading:
    """The reading whose folders are read with captions in files of this extension, and with these words around."""
    if reading.subsets or reading.directory is None or (extension in (None, "", ".txt") and not (prefix or suffix)):
        return reading
    folders = kohya_folders(sorted(reading.directory.glob("*")))
    found = [Subset(path=each.path, repeats=each.repeats, caption=each.caption) for each in folders]
    told = [
        replace(each, caption_extension=extension or None, prefix=prefix or "", suffix=suffix or "")
        for each in found or [Subset(path=reading.directory)]
    ]
    return replace(reading, directory=None, subsets=tuple(told))
