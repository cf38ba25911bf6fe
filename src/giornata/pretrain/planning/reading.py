"""A request from a recipe's name, a TOML or JSON file, or plain values: checked whole, all faults at once."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from giornata.domain.errors import Fault, InvalidInput
from giornata.pretrain.planning.facts import Facts, load_facts
from giornata.pretrain.planning.request import RECIPES, PlanRequest, faults_of
from giornata.protocol.pretraining import PretrainConfig
from giornata.protocol.pretraining_checks import parse


def request_named(config: str, facts: Facts | None = None) -> PlanRequest:
    """A recipe's request, or the one in a file. Raises InvalidInput with all faults."""
    if config in RECIPES:
        return RECIPES[config]()
    path = Path(config)
    if not path.is_file():
        hint = f"recipes: {', '.join(RECIPES)}"
        raise InvalidInput([Fault(where="CONFIG", message=f"{config} is no recipe and no file", hint=hint)])
    document = _document(path)
    # A run's configuration says how it trains; a plan's request does not.
    return request_of_run(parse(document)) if "train" in document else request_of(document, facts)


def request_of_run(config: PretrainConfig, **changes: Any) -> PlanRequest:
    """What a run's configuration asks for, in its mode and in the others; `changes` are fields of PlanRequest.

    Raises InvalidInput with all faults: of a model whose FLOPs nobody knows there is no plan.
    """
    phases = [
        {
            "samples": phase.samples,
            "resolution": phase.resolution,
            "global_batch_size": config.train.global_batch_size,
        }
        for phase in config.phases
    ]
    return request_of({"name": config.name, "model": config.model.architecture.value, "phases": phases} | changes)


def request_of(values: Mapping[str, Any], facts: Facts | None = None) -> PlanRequest:
    """A request from plain values, such as `{"phases": [{"samples": 10**8, "resolution": 256, ...}]}`.

    `recipe = "sd2_base"` begins with that recipe and changes what is given beside it.
    Raises InvalidInput with all faults, each with its field.
    """
    given = dict(values)
    if (recipe := given.pop("recipe", None)) is not None:
        if recipe not in RECIPES:
            hint = f"one of {', '.join(RECIPES)}"
            raise InvalidInput([Fault(where="recipe", message=f"there is no recipe {recipe!r}", hint=hint)])
        given = asdict(RECIPES[recipe]()) | given
    try:
        # Through JSON, in whose strict mode lists are tuples and names are members of an enumeration
        request = TypeAdapter(PlanRequest).validate_json(json.dumps(given, default=str))
    except ValidationError as error:
        raise InvalidInput(
            Fault(where=".".join(str(part) for part in one["loc"]) or "config", message=one["msg"])
            for one in error.errors(include_url=False)
        ) from None
    if faults := faults_of(request, facts or load_facts()):
        raise InvalidInput(faults)
    return request


def _document(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise InvalidInput([Fault(where=str(path), message=f"cannot be read: {error.strerror}")]) from None
    except ValueError as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise InvalidInput([Fault(where=str(path), message=f"is not {kind}: {error}")]) from None
    if not isinstance(document, dict):
        raise InvalidInput([Fault(where=str(path), message="is no table of settings", hint="see the guide")])
    return document
