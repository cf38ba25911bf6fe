"""Turn the fields of a request for pictures into a `generate` spec: short forms, capitals, names of other APIs.

The names are those of the HTTP API of the Stable Diffusion 1.4 server and of diffusers' pipelines (`PIPELINE`,
`SCHEDULER`, `safety_checker`). What has no equivalent is a fault; nothing is dropped without a word.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from giornata.domain.errors import Fault
from giornata.protocol.generation.schedulers import SAMPLER_AND_SCHEDULE, with_one_scheduler
from giornata.protocol.generation.specs import GenerateSpec
from giornata.protocol.specs import canonical_names

SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        "model_id": "model",
        "init_image": "image",
        "mask_image": "mask",
        "num_outputs": "num_images_per_prompt",
    }
)
"""Names of other APIs, in small letters, and the field that each means."""

TEXT, IMAGE, INPAINT = frozenset[str](), frozenset({"image"}), frozenset({"image", "mask"})
PIPELINES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "StableDiffusionPipeline": TEXT,
        "StableDiffusionXLPipeline": TEXT,
        "AutoPipelineForText2Image": TEXT,
        "StableDiffusionImg2ImgPipeline": IMAGE,
        "StableDiffusionXLImg2ImgPipeline": IMAGE,
        "AutoPipelineForImage2Image": IMAGE,
        "StableDiffusionInpaintPipeline": INPAINT,
        "StableDiffusionXLInpaintPipeline": INPAINT,
        "AutoPipelineForInpainting": INPAINT,
    }
)
"""diffusers' pipelines, and the fields of the spec that make a picture of that kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFields:
    """The fields of a spec, and the name under which the request gave each."""

    spec: dict[str, Any]
    faults: tuple[Fault, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)
    one_prompt: bool = False
    """The request gives one text, which is a list of one in the spec."""

    def in_words_of_request(self, faults: Iterable[Fault]) -> list[Fault]:
        """Return the faults of the spec at the places where the request has them."""
        return [replace(fault, where=self._place(fault.where)) for fault in faults]

    def _place(self, where: str) -> str:
        head, _, rest = where.removeprefix("spec.").partition(".")
        if not where.startswith("spec."):
            return where
        if head == "prompts" and self.one_prompt:
            rest = ""
        return ".".join(filter(None, [self.given.get(head, head), rest]))


def spec_fields(request: Mapping[str, Any]) -> SpecFields:
    """Return the fields of the spec that the request stands for, with a fault for each that has no equivalent."""
    spec: dict[str, Any] = {}
    given: dict[str, str] = {}
    faults: list[Fault] = []
    for name, value in _with_one_scheduler(request).items():
        own = _own_name(name)
        if own in given:
            message = f"the same field is given as {given[own]} too"
            faults.append(Fault(where=name, message=message, hint="give it once"))
            continue
        given[own] = name
        spec[own] = _READERS.get(own, _as_it_is)(value)
    faults += _pipeline_faults(spec, given)
    one_prompt = isinstance(request.get(given.get("prompts", "")), str)
    return SpecFields(spec=spec, faults=tuple(faults), given=given, one_prompt=one_prompt)


def lora_use(text: str) -> dict[str, Any]:
    """Return the LoRA that `NAME` or `NAME:WEIGHT` stands for. A name may have colons of its own, as URLs have."""
    name, colon, weight = text.rpartition(":")
    try:
        return {"name": name, "weight": float(weight)} if colon and name else {"name": text}
    except ValueError:
        return {"name": text}


def _with_one_scheduler(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the request with sampler and noise schedule in one field, in small or capital letters."""
    names = {name.lower(): name for name in request}
    pair = {field: request[names[field]] for field in SAMPLER_AND_SCHEDULE if field in names}
    joined = with_one_scheduler(pair)
    if joined is pair:
        return request
    others = {name: value for name, value in request.items() if name != names["sampler_name"]}
    return {**others, names["scheduler"]: joined["scheduler"]}


def _own_name(name: str) -> str:
    """Return the spec's own name of a field that has this name or alias, in small or capital letters."""
    small = SYNONYMS.get(name.lower(), name.lower())
    return next(iter(canonical_names(GenerateSpec, {small: None})[0]))


def _as_it_is(value: Any) -> Any:
    return value


def _prompts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _model(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _loras(value: Any) -> Any:
    """A list of LoRAs, each of which may be text; or the weights by name."""
    if isinstance(value, str):
        return [lora_use(value)]
    if isinstance(value, dict):
        return [{"name": name, "weight": weight} for name, weight in value.items()]
    if isinstance(value, list):
        return [lora_use(each) if isinstance(each, str) else each for each in value]
    return value


_READERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {"prompts": _prompts, "model": _model, "vae": _model, "loras": _loras}
)


def _pipeline_faults(spec: dict[str, Any], given: Mapping[str, str]) -> Iterable[Fault]:
    """Take the pipeline out of the spec: which one is meant is told by the fields. It has to be the same one."""
    if "pipeline" not in spec:
        return
    name, where = spec.pop("pipeline"), given["pipeline"]
    if not isinstance(name, str) or name not in PIPELINES:
        hint = f"leave it out, or give one of {', '.join(PIPELINES)}"
        yield Fault(where=where, message=f"{str(name)[:60]!r} is not a supported pipeline", hint=hint)
        return
    has = {part for part in ("image", "mask") if spec.get(part) is not None}
    if missing := PIPELINES[name] - has:
        yield Fault(where=where, message=f"{name} needs {' and '.join(sorted(missing))}")
    if others := has - PIPELINES[name]:
        message = f"{name} takes no {' and no '.join(sorted(others))}"
        yield Fault(where=where, message=message, hint="leave the pipeline out: the fields tell which it is")
