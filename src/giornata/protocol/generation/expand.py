"""Turn an order into its pictures: a function of the stored spec, so that no picture has to be stored whole."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.generation.fleet_models import BaseFiles
from giornata.domain.generation.prompt_choices import draw_prompt
from giornata.domain.generation.prompt_loras import PromptLora, without_loras
from giornata.protocol.generation.grid import GRID_KIND, PROMPTS, GridSpec, cell_changes, cell_count
from giornata.protocol.generation.picture import MAX_SEED, PictureParams
from giornata.protocol.generation.preprocess import (
    PIXEL_STEPS,
    PREPROCESS_KIND,
    AnnotationParams,
    LeasedParams,
    PreprocessSpec,
    annotator_key,
)
from giornata.protocol.generation.specs import GENERATE_KIND, GenerateSpec, OrderFields

KEY_FIELDS = (
    *("model", "revision", "variant", "vae", "width", "height", "num_inference_steps", "image", "mask", "strength"),
    *("controlnets", "refiner", "high_resolution"),
)
"""Settings that decide on the keys and the work of a picture."""
BASE_FIELDS = ("model", "revision", "variant", "vae")
"""Settings that decide on the base key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPicture:
    """A picture of an order before it is drawn: its number from 0, its seed, and what differs from the order.

    `differs` has the prompt as drawn, without marks of LoRAs. Pictures of equal `batch_key` may share a batch of one
    engine. `base_key` names the base model. `pixel_steps` is its work.
    """

    number: int
    seed: int
    batch_key: str
    base_key: str
    pixel_steps: int
    differs: Mapping[str, Any] = field(default_factory=dict)


class PictureKeys(NamedTuple):
    """The keys of a picture, and its work."""

    batch_key: str
    base_key: str
    pixel_steps: int


def order_spec(kind: str, spec: Mapping[str, Any]) -> OrderFields:
    """Return the parsed spec of an order. Raises ValueError for a kind that is no order of pictures."""
    if kind == GENERATE_KIND:
        return GenerateSpec.model_validate(spec)
    if kind == GRID_KIND:
        return GridSpec.model_validate(spec)
    raise ValueError(f"{kind} is no order of pictures")


def picture_count(kind: str, spec: Mapping[str, Any]) -> int:
    """Return the number of pictures of an order."""
    return len(spec["images"]) if kind == PREPROCESS_KIND else count_of(order_spec(kind, spec))


def count_of(spec: OrderFields) -> int:
    """Return the number of pictures of a parsed order."""
    if isinstance(spec, GenerateSpec):
        return (len(spec.prompts) + len(spec.pictures)) * spec.num_images_per_prompt
    return cell_count(spec) * spec.num_images_per_prompt if isinstance(spec, GridSpec) else 0


def planned_pictures(kind: str, spec: Mapping[str, Any]) -> Iterator[PlannedPicture]:
    """Yield the pictures of an order whose stored spec this is. Raises ValueError for a spec without a seed, and
    InvalidInput for a prompt that cannot be drawn.
    """
    if kind == PREPROCESS_KIND:
        yield from _annotations(PreprocessSpec.model_validate(spec))
        return
    parsed = order_spec(kind, spec)
    if parsed.seed is None:
        raise ValueError("an order's seed is set at submission")
    shared = parsed.model_dump(mode="json")
    keys_of = keys_by_settings(shared)
    repeats = parsed.num_images_per_prompt
    for place, changes in enumerate(changes_of(parsed, shared)):
        own_seed = changes.pop("seed", None)
        keys = keys_of(changes)
        for repeat in range(repeats):
            number = place * repeats + repeat
            first = parsed.seed if own_seed is None else int(own_seed)
            counted = repeat if own_seed is not None or isinstance(parsed, GridSpec) else number
            seed = (first + counted) % (MAX_SEED + 1)
            yield PlannedPicture(
                number=number, seed=seed, differs=_drawn(parsed, shared, changes, seed), **keys._asdict()
            )


def _annotations(spec: PreprocessSpec) -> Iterator[PlannedPicture]:
    key = annotator_key(spec)
    for number, sha256 in enumerate(spec.images):
        differs = {"image": sha256}
        yield PlannedPicture(
            number=number, seed=0, batch_key=key, base_key=key, pixel_steps=PIXEL_STEPS, differs=differs
        )


def changes_of(parsed: OrderFields, shared: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what differs from the order for each prompt, entry or cell, before anything is drawn.

    `shared` is the spec as JSON. Each has a prompt; a seed only where it is not the order's.
    """
    if isinstance(parsed, GridSpec):
        for combination in range(cell_count(parsed)):
            yield cell_changes(parsed, shared, combination)
        return
    yield from ({"prompt": prompt} for prompt in shared["prompts"])
    yield from (dict(each) for each in shared["pictures"])


def _drawn(parsed: OrderFields, shared: Mapping[str, Any], changes: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the changes with prompts as drawn, and with the LoRAs that the prompt names."""
    differs = dict(changes)
    for name in PROMPTS:
        asked = changes.get(name, shared.get(name))
        text = draw_prompt(asked, seed=seed, purpose=name, wildcards=parsed.wildcards)
        if name in changes or text != asked:
            differs[name] = text
    differs["prompt"], named = without_loras(differs["prompt"])
    if named:
        loras = [_lora(lora, shared["prompt_loras"]) for lora in named]
        differs["loras"] = [*differs.get("loras", shared["loras"]), *loras]
    if differs.get("negative_prompt") == shared["negative_prompt"]:
        del differs["negative_prompt"]
    return differs


def _lora(named: PromptLora, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the LoRA of a mark. A name that several slots of a grid make up has to be in the spec."""
    if named.name not in known:
        message = f"<lora:{named.name}> has a name of several slots"
        raise InvalidInput([Fault(where="spec.prompt", message=message, hint="say in prompt_loras which LoRA it is")])
    return {**known[named.name], "weight": named.weight, "text_encoder_weight": named.text_encoder_weight}


def keys_by_settings(shared: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], PictureKeys]:
    """Return a function from changed settings to keys, which makes each set of settings into a picture only once.

    `shared` is an order's spec as JSON."""

    @lru_cache(maxsize=4096)
    def keys(changed: str) -> PictureKeys:
        params = picture_params(GENERATE_KIND, shared, seed=0, differs={"prompt": "", **json.loads(changed)})
        return PictureKeys(batch_key_of(params), base_key_of(params), params.pixel_steps())

    return lambda changed: keys(json.dumps({name: changed[name] for name in KEY_FIELDS if name in changed}))


def picture_params(kind: str, spec: Mapping[str, Any], *, seed: int, differs: Mapping[str, Any]) -> PictureParams:
    """Return one picture whole, from its order's stored spec and its row."""
    del kind
    shared = {name: value for name, value in spec.items() if name in PictureParams.model_fields}
    return PictureParams.model_validate({**shared, **differs, "seed": seed})


def leased_params(kind: str, spec: Mapping[str, Any], *, seed: int, differs: Mapping[str, Any]) -> LeasedParams:
    """Return a picture of any order whole, as a node gets it, from its order's stored spec and its row."""
    if kind != PREPROCESS_KIND:
        return picture_params(kind, spec, seed=seed, differs=differs)
    shared = {name: value for name, value in spec.items() if name in AnnotationParams.model_fields}
    return AnnotationParams.model_validate({**shared, **differs})


def bases_of(kind: str, spec: Mapping[str, Any]) -> Mapping[str, BaseFiles]:
    """Return the bases of an order's pictures by their keys. The spec is a stored one."""
    if kind == PREPROCESS_KIND:
        parsed = PreprocessSpec.model_validate(spec)
        return {annotator_key(parsed): BaseFiles(name=parsed.annotator)}
    order = order_spec(kind, spec)
    shared = order.model_dump(mode="json")
    changed = (
        {name: changes[name] for name in BASE_FIELDS if name in changes} for changes in changes_of(order, shared)
    )
    distinct = {json.dumps(each, sort_keys=True): each for each in changed}
    found = [picture_params(kind, shared, seed=0, differs={"prompt": "", **each}) for each in distinct.values()]
    return {base_key_of(params): _files_of_base(params) for params in found}


def _files_of_base(params: PictureParams) -> BaseFiles:
    uses = [params.model] if params.vae is None else [params.model, params.vae]
    return BaseFiles(name=params.model.name, sha256s=tuple(each.sha256 for each in uses if each.sha256 is not None))


def base_key_of(params: PictureParams) -> str:
    """Return the key of the base model, by which a picture goes to a node that holds it. 32 hexadecimal digits."""
    vae = None if params.vae is None else (params.vae.sha256 or params.vae.name)
    return _digest([params.model.sha256 or params.model.name, params.revision, params.variant, vae])


def plain_base_key(name: str, sha256: str | None) -> str:
    """Return the base key of a model with its own VAE, in its usual revision and variant."""
    return _digest([sha256 or name, None, None, None])


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
