"""Types of a pre-training configuration's values, so checked that one wrong type does not hide what else is wrong.

A value of the wrong type is told and taken away: its field falls back to its default, or, where it has none, to a
stand-in. So there is a configuration that the other checks can judge. Whatever they say of such a field, or of one
that is judged together with it, is not told: it would speak of a value that nobody gave.
"""

import copy
import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from giornata.domain.errors import Fault
from giornata.protocol.pretraining import Ingest, PretrainConfig

T = TypeVar("T", PretrainConfig, Ingest)
Place = tuple[int | str, ...]
ALIKE = 0.75
"""A field as near as that may be meant."""

_PHASE = {"name": "stand-in", "resolution": 512, "samples": 1}
STAND_INS: Mapping[tuple[str, ...], Any] = MappingProxyType(
    {
        ("name",): "stand-in",
        ("storage",): "stand-in",
        ("data",): {"shards": "stand-in"},
        ("data", "shards"): "stand-in",
        ("model",): {"architecture": "shapes"},
        ("model", "architecture"): "shapes",
        ("train",): {"global_batch_size": 1},
        ("train", "global_batch_size"): 1,
        ("phases",): [_PHASE],
        **{("phases", name): value for name, value in _PHASE.items()},
    }
)
"""Of what has no default. Places are without the numbers of phases."""
JUDGED_WITH: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "train.global_batch_size": ("workers.trainers",),
        "train.token_routing": ("train.torch_compile",),
        "train.channels_last": ("train.parallel",),
        "workers.min_trainers": ("workers.trainers",),
        "encode.store_text": ("encode.mode",),
        "data.bucket_reso_steps": ("data.enable_bucket", "phases"),
        "tracking.trace_rows": ("storage",),
    }
)
"""Fields whose faults rest on other fields too."""


def typed(kind: type[T], values: Mapping[str, Any], *, under: str = "") -> tuple[T | None, list[Fault]]:
    """The values as a `kind`, and what is wrong with their types; with such faults the `kind` is made of the other
    values alone, and None where even that is impossible."""
    adapter = TypeAdapter(kind)
    try:
        return adapter.validate_python(dict(values)), []
    except ValidationError as error:
        wrong = error.errors(include_url=False)
    left = copy.deepcopy(dict(values))
    for one in wrong:
        _stand_in(left, one["loc"])
    faults = [_told(one, under) for one in wrong]
    try:
        return adapter.validate_python(left), faults
    except ValidationError:
        return None, faults


def judged_too(judged: Iterable[Fault], of_types: Iterable[Fault]) -> list[Fault]:
    """Of what the other checks found that which speaks of given values only."""
    told = {fault.where for fault in of_types}
    return [
        fault
        for fault in judged
        if not any(
            _same(where, wrong) for where in (fault.where, *JUDGED_WITH.get(fault.where, ())) for wrong in told
        )
    ]


def _same(one: str, other: str) -> bool:
    """Whether one of them is the other or a part of it."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _told(one: ErrorDetails, under: str) -> Fault:
    where = ".".join(str(part) for part in (under, *one["loc"]) if part != "") or "config"
    if one["type"] != "unexpected_keyword_argument":
        return Fault(where=where, message=one["msg"])
    near = difflib.get_close_matches(str(one["loc"][-1]), _field_names(), n=1, cutoff=ALIKE)
    return Fault(where=where, message="unknown field", hint=f"did you mean {near[0]}?" if near else "remove it")


def _field_names() -> list[str]:
    """Of all tables of a configuration."""
    schema = TypeAdapter(PretrainConfig).json_schema()
    return sorted({name for part in (schema, *schema["$defs"].values()) for name in part.get("properties", {})})


def _stand_in(values: dict[str, Any], place: Place) -> None:
    """Put a stand-in at this place, or nothing where there is a default."""
    holder: Any = values
    for part in place[:-1]:
        try:
            holder = holder[part]
        except (KeyError, IndexError, TypeError):
            return
    names = tuple(part for part in place if isinstance(part, str))
    last = place[-1] if place else None
    if isinstance(holder, list) and isinstance(last, int):
        holder[last] = dict(_PHASE) if names == ("phases",) else "stand-in"
    elif isinstance(holder, dict) and names in STAND_INS:
        holder[last] = copy.deepcopy(STAND_INS[names])
    elif isinstance(holder, dict):
        holder.pop(last, None)
