"""The base models of an order whose pictures have no mask: a model that was made to inpaint draws none of them."""

from collections.abc import Iterator, Mapping
from typing import Any

from giornata.protocol.generation.checks.named_models import NamedModel, named_models


def unmasked_bases(spec: Mapping[str, Any]) -> Iterator[tuple[NamedModel, str]]:
    """Yield each such base once, with the first place where a mask is missing. The spec need not be valid."""
    bases = {each.where: each for each in named_models(spec) if each.role == "base"}
    told: set[str] = set()
    for base, where in _without_mask(spec, bases):
        if base.where not in told:
            told.add(base.where)
            yield base, where


def _without_mask(spec: Mapping[str, Any], bases: Mapping[str, NamedModel]) -> Iterator[tuple[NamedModel, str]]:
    entries, shared = _list(spec.get("pictures")), bases.get("spec.model")
    is_masked = bool(spec.get("mask")) or any(_is_of_masks(axis) for axis in _list(spec.get("axes")))
    yield from ((base, where) for where, base in bases.items() if where.startswith("spec.axes.") and not is_masked)
    if shared is not None and not is_masked and (not entries or spec.get("prompts")):
        yield shared, "spec.mask"
    for number, entry in enumerate(entries):
        given = entry if isinstance(entry, Mapping) else {}
        found = bases.get(f"spec.pictures.{number}.model", shared)
        if found is not None and not given.get("mask", spec.get("mask")):
            yield found, f"spec.pictures.{number}.mask"


def _is_of_masks(axis: object) -> bool:
    return isinstance(axis, Mapping) and axis.get("field") == "mask"


def _list(given: object) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else []
