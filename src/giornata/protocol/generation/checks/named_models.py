"""The models and the uploaded pictures that an order's spec names, with their places in the spec as JSON."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from giornata.domain.generation.prompt_loras import without_loras
from giornata.protocol.generation.checks.prompt_faults import prompt_texts
from giornata.protocol.generation.grid import FIELD, with_named_models

LISTS = {"loras": "lora", "embeddings": "embedding", "controlnets": "controlnet"}
SINGLE = {"model": "base", "vae": "vae"}
PICTURES = ("image", "mask")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """A model that a spec names. `use` is the object of the spec itself, with `name` and `sha256`: what is written
    into it is in the spec. `role` is one of `PictureParams.files`.
    """

    where: str
    role: str
    use: dict[str, Any]


def named_models(spec: Mapping[str, Any]) -> Iterator[NamedModel]:
    """Yield every model of an order's stored spec, those of entries and axes too. What has no name is passed over."""
    yield from _of_settings(spec, "spec")
    for name, use in _items(spec.get("prompt_loras")):
        yield from _model(use, f"spec.prompt_loras.{name}", "lora")
    for number, each in enumerate(_list(spec.get("pictures"))):
        if isinstance(each, Mapping):
            yield from _of_settings(each, f"spec.pictures.{number}")
    for number, axis in enumerate(_list(spec.get("axes"))):
        found = FIELD.fullmatch(str(axis.get("field") or "")) if isinstance(axis, Mapping) else None
        role = None if found is None else {**SINGLE, **LISTS}.get(found["name"])
        for place, value in enumerate(_list(axis.get("values")) if role is not None else ()):
            yield from _model(value, f"spec.axes.{number}.values.{place}", role or "")


def with_objects(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a spec as it was given, in which models named by a text are objects with that name: in its
    settings, its entries, its axes and its prompts. The spec need not be valid.
    """
    made: dict[str, Any] = _with_objects(copy.deepcopy(dict(spec)))
    made["pictures"] = [_with_objects(each) for each in _list(made.get("pictures"))]
    made["axes"] = [with_named_models(axis) for axis in _list(made.get("axes"))]
    lines = chain.from_iterable(_list(each) for _, each in _items(made.get("wildcards")))
    texts = [*(text for _, text in prompt_texts(made)), *(line for line in lines if isinstance(line, str))]
    named = {lora.name: {"name": lora.name} for text in texts for lora in without_loras(text)[1]}
    given = {name: _object(use) for name, use in _items(made.get("prompt_loras")) if isinstance(name, str)}
    made["prompt_loras"] = named | given
    return made


def _with_objects(given: Any) -> Any:
    """Return settings with objects in place of texts; anything else as it is."""
    if not isinstance(given, dict):
        return given
    changed = {name: _object(given[name]) for name in SINGLE if name in given}
    changed |= {name: [_object(each) for each in _list(given[name])] for name in LISTS if name in given}
    if isinstance(refiner := given.get("refiner"), dict):
        changed["refiner"] = {**refiner, "model": _object(refiner.get("model"))}
    return {**given, **changed}


def uploaded_pictures(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield place and sha256 of each picture that an order starts from, follows or annotates. Places have no `spec.`
    before them. The spec need not be valid.
    """
    yield from _pictures_of(spec, "")
    images = enumerate(_list(spec.get("images")))
    yield from ((f"images.{number}", each) for number, each in images if isinstance(each, str))
    for number, each in enumerate(_list(spec.get("pictures"))):
        if isinstance(each, Mapping):
            yield from _pictures_of(each, f"pictures.{number}.")
    for number, axis in enumerate(_list(spec.get("axes"))):
        if isinstance(axis, Mapping) and str(axis.get("field")).rpartition(".")[2] in PICTURES:
            values = enumerate(_list(axis.get("values")))
            yield from ((f"axes.{number}.values.{place}", value) for place, value in values if isinstance(value, str))


def _of_settings(given: Mapping[str, Any], where: str) -> Iterator[NamedModel]:
    for name, role in SINGLE.items():
        yield from _model(given.get(name), f"{where}.{name}", role)
    for name, role in LISTS.items():
        for number, use in enumerate(_list(given.get(name))):
            yield from _model(use, f"{where}.{name}.{number}", role)
    refiner = given.get("refiner")
    if isinstance(refiner, Mapping):
        yield from _model(refiner.get("model"), f"{where}.refiner.model", "refiner")


def _object(use: Any) -> Any:
    return {"name": use} if isinstance(use, str) and use else use


def _model(use: object, where: str, role: str) -> Iterator[NamedModel]:
    if isinstance(use, dict) and isinstance(use.get("name"), str):
        yield NamedModel(where=where, role=role, use=use)


def _pictures_of(given: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    for name in PICTURES:
        if isinstance(given.get(name), str):
            yield f"{where}{name}", given[name]
    for number, each in enumerate(_list(given.get("controlnets"))):
        if isinstance(each, Mapping) and isinstance(each.get("image"), str):
            yield f"{where}controlnets.{number}.image", each["image"]


def _list(given: object) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else []


def _items(given: object) -> list[tuple[str, Any]]:
    return list(given.items()) if isinstance(given, Mapping) else []
