"""Pairs of a picture and its mask that an order draws from, with the mask's place in the spec."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedPicture:
    """A picture that is drawn anew where its mask is white. `where` is the place that chose the mask, or the picture
    where the mask is the order's."""

    where: str
    image: str
    mask: str


def masked_pictures(spec: Mapping[str, Any]) -> Iterator[MaskedPicture]:
    """Yield each distinct pair of picture and mask of an order once, by sha256. The spec need not be valid."""
    seen: set[tuple[str, str]] = set()
    for pair in _pairs(spec):
        if (pair.image, pair.mask) not in seen:
            seen.add((pair.image, pair.mask))
            yield pair


def _pairs(spec: Mapping[str, Any]) -> Iterator[MaskedPicture]:
    image, mask = spec.get("image"), spec.get("mask")
    images, masks = _of_axes(spec, "image"), _of_axes(spec, "mask")
    if spec.get("pictures") is None or spec.get("prompts"):
        for image_at, one in images or [("spec.image", image)]:
            for mask_at, other in masks or [(image_at if images else "spec.mask", mask)]:
                yield from _pair(mask_at, one, other)
    for number, entry in enumerate(_list(spec.get("pictures"))):
        if isinstance(entry, Mapping):
            field = "mask" if "mask" in entry else "image"
            where = f"spec.pictures.{number}.{field}"
            yield from _pair(where, entry.get("image", image), entry.get("mask", mask))


def _of_axes(spec: Mapping[str, Any], field: str) -> list[tuple[str, Any]]:
    """Return the values of the axes of a field, each with its place."""
    return [
        (f"spec.axes.{number}.values.{place}", value)
        for number, axis in enumerate(_list(spec.get("axes")))
        if isinstance(axis, Mapping) and axis.get("field") == field
        for place, value in enumerate(_list(axis.get("values")))
    ]


def _pair(where: str, image: object, mask: object) -> Iterator[MaskedPicture]:
    if _is_sha256(image) and _is_sha256(mask):
        yield MaskedPicture(where=where, image=str(image), mask=str(mask))


def _is_sha256(given: object) -> bool:
    return isinstance(given, str) and SHA256.fullmatch(given) is not None


def _list(given: object) -> Sequence[Any]:
    return given if isinstance(given, list | tuple) else ()
