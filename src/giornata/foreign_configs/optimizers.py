"""Optimizers: their names and arguments in other trainers, and what each does where it is told nothing."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from giornata.foreign_configs.account import Account
from giornata.protocol.specs import TrainSpec

_SAME_ARITHMETIC = {"pagedadamw8bit": "adamw8bit", "pagedadamw": "adamw", "schedulefreeadamw": "adamwschedulefree"}
_ADAM: Mapping[str, Any] = MappingProxyType({"betas": (0.9, 0.999), "eps": 1e-8})
_OF_THE_PACKAGES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "adamw": {**_ADAM, "weight_decay": 0.01},
        "adamw8bit": {**_ADAM, "weight_decay": 0.01},
        "prodigy": {**_ADAM, "weight_decay": 0.0, "use_bias_correction": False, "safeguard_warmup": False},
        "adamwschedulefree": {**_ADAM, "weight_decay": 0.0},
        "adafactor": {"weight_decay": 0.0, "relative_step": True, "scale_parameter": True},
        "lion": {"betas": (0.9, 0.99), "weight_decay": 0.0},
        "came": {"weight_decay": 0.0},
    }
)
"""Defaults of the packages whose optimizers the trainers use."""
_ADAFACTORS: Mapping[str, Any] = MappingProxyType({"clip_threshold": 1.0, "decay_rate": -0.8, "eps": (1e-30, 1e-3)})
_FIXED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "adamw": {"amsgrad": False},
        "prodigy": {
            "decouple": True,
            "use_bias_correction": True,
            "safeguard_warmup": True,
            "d0": 1e-6,
            "d_coef": 1.0,
        },
        "adafactor": {"relative_step": False, "scale_parameter": False, "warmup_init": False, **_ADAFACTORS},
        "adamwschedulefree": {"r": 0.0, "weight_lr_power": 2.0, "warmup_steps": 0},
        "lion": {"betas": (0.9, 0.99)},
        "came": {"betas": (0.9, 0.999, 0.9999), "eps": (1e-30, 1e-16), "clip_threshold": 1.0},
    }
)
"""Arguments by the values that they have here, unless a spec can say others."""
_OWN_MOMENTS = frozenset({"adafactor", "lion", "came"})
_WITHOUT_EFFECT = frozenset({"fused", "foreach", "capturable", "is_paged", "percentile_clipping", "optim_bits"})


def plain_name(name: Any) -> str:
    """An optimizer's name without its module, case and separators."""
    plain = "".join(letter for letter in str(name).rpartition(".")[2].lower() if letter.isalnum())
    return _SAME_ARITHMETIC.get(plain, plain)


def take_optimizer(
    account: Account, key: str, arguments_key: str, arguments: Mapping[str, Any], **defaults: Any
) -> None:
    """The optimizer that `key` names, and its arguments; `defaults` are the trainer's where it has its own."""
    plain = plain_name(account.value(key))
    account.take(key, "optimizer", plain)
    if key in account.refused:
        account.leave(arguments_key)
        return
    account.seen.add(arguments_key)
    usual = {**_OF_THE_PACKAGES.get(plain, {}), **defaults}
    fixed, others = _FIXED.get(plain, {}), dict[str, Any]()
    for name, value in {**usual, **arguments}.items():
        own = f"{arguments_key}.{name}"
        given = Account(
            given={own: value} if name in arguments else {},
            defaults={own: value},
            taken=account.taken,
            refused=account.refused,
            left_out=account.left_out,
        )
        if name in _WITHOUT_EFFECT or (name in fixed and fixed[name] == value):
            given.leave(own)
        elif _take_common(given, own, name, value, plain):
            continue
        elif _may_be_said(plain, name, value):
            others[name] = value
        elif name in fixed:
            given.refuse(own, f"{plain} runs with {name} {fixed[name]} here")
        else:
            given.without_equal(own, f"there is no such setting of {plain} here")
    if others:
        account.take(arguments_key, "optimizer_args", others)


def _may_be_said(plain: str, name: str, value: Any) -> bool:
    """Return True when a spec may tell the optimizer this in optimizer_args, where there is such a field."""
    if "optimizer_args" not in TrainSpec.model_fields:
        return False
    probe = {"optimizer": plain, "learning_rate": 1.0, "optimizer_args": {name: value}}
    try:
        TrainSpec.model_validate({"model": "a/model", "dataset": "ds_0", **probe})
    except ValidationError:
        return False
    return True


def _take_common(account: Account, own: str, name: str, value: Any, plain: str) -> bool:
    """Take an argument that most optimizers have, and that is a field of its own here; False for others."""
    if plain in _OWN_MOMENTS and name != "weight_decay":
        return False
    if name == "betas" and isinstance(value, list | tuple) and len(value) == 2:
        account.take(own, "adam_beta1", value[0])
        account.take(own, "adam_beta2", value[1])
    elif name in {"weight_decay", "eps", "beta1", "beta2"} and isinstance(value, int | float):
        fields = {"weight_decay": "adam_weight_decay", "eps": "adam_epsilon"}
        account.take(own, fields.get(name, f"adam_{name}"), value)
    else:
        return False
    return True
