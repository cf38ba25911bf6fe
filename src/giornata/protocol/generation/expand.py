"""Turn an order into its pictures: a function of the stored spec, so that no picture has to be stored whole."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from giornata.protocol.generation.picture import PictureParams
from giornata.protocol.generation.specs import GenerateSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPicture:
    """A picture of an order before it is drawn: its number from 0, its seed, and what differs from the order.

    Pictures of equal `batch_key` may share a batch of one engine. `base_key` names the base model. `pixel_steps` is
    its work.
    """

    number: int
    seed: int
    batch_key: str
    base_key: str
    pixel_steps: int
    differs: Mapping[str, Any] = field(default_factory=dict)


def picture_count(kind: str, spec: Mapping[str, Any]) -> int:
    """Return the number of pictures of an order."""
    del kind
    parsed = GenerateSpec.model_validate(spec)
    return len(parsed.prompts) * parsed.num_images_per_prompt


def planned_pictures(kind: str, spec: Mapping[str, Any]) -> Iterator[PlannedPicture]:
    """Yield the pictures of an order whose stored spec this is. Raises ValueError for a spec without a seed."""
    parsed = GenerateSpec.model_validate(spec)
    if parsed.seed is None:
        raise ValueError("an order's seed is set at submission")
    for number in range(picture_count(kind, spec)):
        differs = {"prompt": parsed.prompts[number // parsed.num_images_per_prompt]}
        params = picture_params(kind, spec, seed=parsed.seed + number, differs=differs)
        yield PlannedPicture(
            number=number,
            seed=params.seed,
            batch_key=batch_key_of(params),
            base_key=base_key_of(params),
            pixel_steps=params.pixel_steps(),
            differs=differs,
        )


def picture_params(kind: str, spec: Mapping[str, Any], *, seed: int, differs: Mapping[str, Any]) -> PictureParams:
    """Return one picture whole, from its order's stored spec and its row."""
    del kind
    shared = {name: value for name, value in spec.items() if name in PictureParams.model_fields}
    return PictureParams.model_validate({**shared, **differs, "seed": seed})


def base_key_of(params: PictureParams) -> str:
    """Return the key of the base model, by which a picture goes to a node that holds it. 32 hexadecimal digits."""
    vae = None if params.vae is None else (params.vae.sha256 or params.vae.name)
    return _digest([params.model.sha256 or params.model.name, params.revision, params.variant, vae])


def batch_key_of(params: PictureParams) -> str:
    """Return the key of pictures that may share one batch: base, mode and size. 32 hexadecimal digits."""
    mode = "text" if params.image is None else ("image" if params.mask is None else "inpaint")
    controls = [each.sha256 or each.name for each in params.controlnets]
    refiner = None if params.refiner is None else (params.refiner.model.sha256 or params.refiner.model.name)
    second = params.high_resolution
    larger = None if second is None else (second.width, second.height)
    return _digest([base_key_of(params), mode, params.width, params.height, controls, refiner, larger])


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("ascii")).hexdigest()[:32]
