"""Configurations to begin with, of `recipes.toml`: `giornata pretrain run shapes`, or a TOML file that says
`recipe = "sd2_base"`.
"""

import tomllib
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.pretraining import PretrainConfig
from giornata.protocol.pretraining_checks import parse, read_toml


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    return tomllib.loads(resources.files("giornata.pretrain").joinpath("recipes.toml").read_text(encoding="utf-8"))


def _recipe(name: str, storage: str = "pretrain") -> PretrainConfig:
    return parse(_values_of_recipe(name, storage))


def _values_of_recipe(name: str, storage: str) -> dict[str, Any]:
    return {**_shipped()[name], "storage": storage, "data": {"shards": f"{storage}/shards"}}


RECIPES: dict[str, Callable[..., PretrainConfig]] = {name: partial(_recipe, name) for name in _shipped()}
"""By name: a function of the storage, `pretrain` by default, that returns the configuration."""
sd2_base, sdxl_tiny, shapes = RECIPES["sd2_base"], RECIPES["sdxl_tiny"], RECIPES["shapes"]


def read_config(word: str) -> PretrainConfig:
    """The configuration of a recipe by its name, or of a TOML file (see `read_values`). Raises InvalidInput with all
    faults."""
    return parse(read_values(word))


def read_values(word: str, *, where: str = "CONFIG") -> dict[str, Any]:
    """The plain values of a recipe by its name, or of a TOML file; one that says `recipe = "…"` is that recipe, and
    what else it says goes over it, table by table.

    Raises InvalidInput where there is no such recipe or file; `where` names the word in the message.
    """
    path, values = Path(word), {"recipe": word}
    if word not in RECIPES or path.exists():
        if not path.exists():
            hint = f"recipes: {', '.join(RECIPES)}"
            raise InvalidInput([Fault(where=where, message=f"{word} is neither a recipe nor a file", hint=hint)])
        values = read_toml(path)
    if (name := values.pop("recipe", None)) is None:
        return values
    if name not in RECIPES:
        fault = Fault(where="recipe", message=f"{name!r} is not known", hint="one of " + ", ".join(RECIPES))
        raise InvalidInput([fault])
    storage = values.get("storage")
    return _over(_values_of_recipe(name, storage if isinstance(storage, str) else "pretrain"), values)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        merged[name] = _over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
