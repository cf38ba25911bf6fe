"""sd-scripts' network_module and network_args: its own LoRA, and LyCORIS."""

import ast
import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from giornata.foreign_configs import layers
from giornata.foreign_configs.account import Account, is_off


def parse_arguments(given: Any) -> dict[str, Any]:
    """A list of `name=value`, one text of several, or a mapping. Values are Python's where they read as such."""
    if isinstance(given, dict):
        return dict(given)
    parts = shlex.split(given) if isinstance(given, str) else list(given or ())
    pairs = (str(part).partition("=") for part in parts)
    return {name.strip(): _value(text.strip()) for name, _, text in pairs if name.strip()}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {"true": True, "false": False}.get(text.lower(), text)


_ALGOS = {"lora": "lora", "locon": "lora", "lokr": "lokr"}
_TAKEN: Mapping[str, str] = MappingProxyType(
    {
        "dropout": "network_dropout",
        "rank_dropout": "rank_dropout",
        "module_dropout": "module_dropout",
        "dora_wd": "use_dora",
        "weight_decompose": "use_dora",
        "rs_lora": "use_rslora",
        "decompose_both": "decompose_both",
        "factor": "decompose_factor",
    }
)
_NO_MEANING = frozenset(
    {"algo", "preset", "conv_dim", "conv_alpha", "verbose", "bypass_mode", "constraint", "use_cp"}
)
_BLOCKS = frozenset({"down_lr_weight", "mid_lr_weight", "up_lr_weight", "block_lr_zero_threshold"})
_PRESETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "full": (*layers.TRANSFORMER, *layers.RESNET_LINEAR, *layers.CONVOLUTIONS, *layers.ENDS),
        "full-lin": (*layers.TRANSFORMER, *layers.RESNET_LINEAR),
        "attn-mlp": layers.TRANSFORMER,
        "attn-only": (*layers.ATTENTION,),
    }
)
"""LyCORIS's presets by the layers that they mean."""


def take_network(account: Account) -> None:
    """The kind of the adapter, its layers, and its arguments."""
    arguments = parse_arguments(account.value("network_args"))
    account.seen.add("network_args")
    module = account.value("network_module")
    if module is None:
        account.refuse(
            "network_module",
            "whole models are not trained here: name a network_module",
        )
        return
    if module == "networks.lora":
        _take_lora(account, arguments)
    elif str(module).startswith("lycoris"):
        _take_lycoris(account, arguments)
    else:
        account.refuse("network_module", "supported: networks.lora, and lycoris.kohya with algo lora or lokr")
        return
    for name, value in arguments.items():
        _take_argument(account, f"network_args.{name}", name, value)


def _take_lora(account: Account, arguments: Mapping[str, Any]) -> None:
    account.take("network_module", "adapter_type", "lora")
    conv_dim = arguments.get("conv_dim")
    targets: tuple[str, ...] = layers.TRANSFORMER
    if not is_off(conv_dim):
        targets = (*targets, *layers.RESNET_LINEAR, *layers.CONVOLUTIONS)
        _take_sizes(account, layers.CONVOLUTIONS, conv_dim, arguments.get("conv_alpha", 1))
    account.take("network_module", "target_modules", targets)
    account.take("network_module", "text_encoder_target_modules", layers.TEXT)


def _take_lycoris(account: Account, arguments: Mapping[str, Any]) -> None:
    algo, preset = str(arguments.get("algo", "lora")).lower(), str(arguments.get("preset", "full"))
    if algo not in _ALGOS:
        account.refuse("network_args.algo", f"{algo} is not supported; supported: lora, lokr")
        return
    account.take("network_module", "adapter_type", _ALGOS[algo])
    if preset not in _PRESETS:
        account.refuse(
            "network_args.preset", f"of LyCORIS's presets there are {', '.join(_PRESETS)}; name the layers"
        )
        return
    account.take("network_module", "target_modules", _PRESETS[preset])
    text = layers.TEXT[:4] if preset == "attn-only" else layers.TEXT
    account.take("network_module", "text_encoder_target_modules", text)
    if preset == "full":
        rank, alpha = account.value("network_dim"), account.value("network_alpha")
        within = (*layers.CONVOLUTIONS, "conv_in", "conv_out")
        _take_sizes(account, within, arguments.get("conv_dim") or rank, arguments.get("conv_alpha") or alpha)


def _take_sizes(account: Account, names: tuple[str, ...], rank: Any, alpha: Any) -> None:
    """Another rank and alpha for convolutions, where they are not those of the rest."""
    if rank != account.value("network_dim"):
        account.take("network_args", "rank_pattern", dict.fromkeys(names, rank))
    if alpha != account.value("network_alpha"):
        account.take("network_args", "alpha_pattern", dict.fromkeys(names, alpha))


def _take_argument(account: Account, own: str, name: str, value: Any) -> None:
    part = Account(given={own: value}, taken=account.taken, refused=account.refused, left_out=account.left_out)
    if name in _TAKEN and not is_off(value):
        part.take(own, _TAKEN[name], value)
    elif name in _NO_MEANING or name in _TAKEN or own in account.refused:
        part.leave(*([own] if own not in account.refused and not _told_already(account, name) else []))
    elif name in _BLOCKS:
        part.without_equal(own, "rates by block are written otherwise here: block_learning_rates")
    else:
        part.without_equal(own, "there is no such setting of an adapter here")


def _told_already(account: Account, name: str) -> bool:
    """Return True when the argument shows in what was taken."""
    return name in {"algo", "preset"} or (
        name in {"conv_dim", "conv_alpha"} and {"rank_pattern", "alpha_pattern"} & account.taken.keys() != set()
    )
