"""A request from a run's configuration, or from plain values: checked whole, all faults at once.

What only a plan asks (clusters and prices that are compared, rates, months of storage) stands in a file of its own,
so that a run's file says nothing that the run does not read.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from giornata.domain.errors import Fault, InvalidInput, collecting
from giornata.pretrain.planning.facts import Facts, load_facts
from giornata.pretrain.planning.of_run import Found, rows_found, values_of_run
from giornata.pretrain.planning.request import OF_THE_RUN, RECIPES, PlanRequest
from giornata.pretrain.planning.request_faults import faults_of
from giornata.pretrain.recipes import RECIPES as RUNS
from giornata.pretrain.recipes import read_config
from giornata.protocol.pretraining import PretrainConfig

ASSUMED = tuple(each.name for each in fields(PlanRequest) if each.name not in OF_THE_RUN)
"""What may stand in a file for `--assume`."""


def request_named(config: str, facts: Facts | None = None, *, assume: Path | None = None) -> PlanRequest:
    """Of a run's recipe or TOML file, as `giornata pretrain run` reads it, and of what is assumed beside it.

    Raises InvalidInput with all faults of both.
    """
    if config not in RUNS and not Path(config).exists():
        hint = f"recipes: {', '.join(RUNS)}"
        raise InvalidInput([Fault(where="CONFIG", message=f"{config} is neither a recipe nor a file", hint=hint)])
    faults: list[Fault] = []
    assumed: dict[str, Any] = {}
    with collecting(faults):
        run = read_config(config)
    with collecting(faults):
        assumed = {} if assume is None else _assumed(assume)
    if faults:
        raise InvalidInput(faults)
    return request_of_run(run, facts, **assumed)


def request_of_run(config: PretrainConfig, facts: Facts | None = None, **assumed: Any) -> PlanRequest:
    """What a run's configuration asks for, in its mode and in the others; `assumed` are fields of PlanRequest.

    Of a configuration whose trainers have no GPU only FLOPs and storage are told, unless `trainers` are assumed.
    Raises InvalidInput with all faults.
    """
    known = facts or load_facts()
    rows = Found(fields={}) if "dataset_rows" in assumed else rows_found(config)
    values = values_of_run(config, known, rows)
    if assumed.get("trainers"):
        values["priced"] = True
        values["configured"] |= {"trainers": None}
    return request_of(values | assumed, known)


def request_of(values: Mapping[str, Any], facts: Facts | None = None) -> PlanRequest:
    """A request from plain values, such as `{"phases": [{"samples": 10**8, "resolution": 256, ...}]}`.

    `recipe = "sd2_base"` begins with that schedule and changes what is given beside it.
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


def _assumed(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput([Fault(where=str(path), message=f"cannot be read: {error.strerror}")]) from None
    except ValueError as error:
        raise InvalidInput([Fault(where=str(path), message=f"is not TOML: {error}")]) from None
    unknown = [name for name in values if name not in ASSUMED]
    if unknown:
        raise InvalidInput(
            Fault(
                where=f"{path}: {name}",
                message="is the run's own" if name in OF_THE_RUN else "is nothing that a plan assumes",
                hint=f"one of {', '.join(ASSUMED)}",
            )
            for name in unknown
        )
    return values
