"""The annotators that turn a picture into a control picture: their parameters, versions and cache keys. Data only."""

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from giornata.domain.errors import Fault

ANNOTATION_ENTRY = "annotation:"
"""An annotation with the key KEY stands in its project's cache under `annotation:KEY`, as a PNG."""

ParamValue = float | int | str | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatorParam:
    """A number that an annotator takes, with its default and its bounds."""

    name: str
    default: float
    least: float
    most: float
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatorFacts:
    """The facts of one annotator. A change of its pixels raises `version`. `models` are the hub ids of its weights;
    an annotator without them runs inline."""

    about: str
    version: int = 1
    params: tuple[AnnotatorParam, ...] = ()
    models: tuple[str, ...] = ()


def _whole(name: str, default: int, least: int, most: int) -> AnnotatorParam:
    return AnnotatorParam(name=name, default=default, least=least, most=most, whole=True)


def _real(name: str, default: float, least: float, most: float) -> AnnotatorParam:
    return AnnotatorParam(name=name, default=default, least=least, most=most)


ANNOTATORS: Mapping[str, AnnotatorFacts] = MappingProxyType(
    {
        "canny": AnnotatorFacts(
            about="Edges by Canny's method.",
            params=(_whole("low_threshold", 100, 0, 255), _whole("high_threshold", 200, 0, 255)),
        ),
        "lineart": AnnotatorFacts(
            about="Dark lines on a light ground, as white lines on black.",
            params=(_real("sigma", 6.0, 0.5, 50.0), _whole("threshold", 8, 0, 255)),
        ),
        "scribble": AnnotatorFacts(
            about="Thick lines by a difference of two blurred pictures.",
            params=(_whole("threshold", 32, 1, 255),),
        ),
        "grey": AnnotatorFacts(about="The picture without colors."),
        "tile": AnnotatorFacts(
            about="The picture without fine details.",
            params=(_real("down_sampling_rate", 2.0, 1.0, 16.0),),
        ),
        "shuffle": AnnotatorFacts(
            about="The colors of the picture, moved around.",
            params=(_whole("seed", 0, 0, 2**31 - 1), _whole("grain_px", 256, 16, 1024)),
        ),
        "depth": AnnotatorFacts(
            about="The distance of each pixel, near is white.",
            models=("depth-anything/Depth-Anything-V2-Small-hf",),
        ),
        "segmentation": AnnotatorFacts(
            about="The kind of thing at each pixel, in the colors of ADE20K.",
            models=("openmmlab/upernet-convnext-small",),
        ),
        "pose": AnnotatorFacts(
            about="The skeletons of people, in the colors of OpenPose.",
            params=(_real("threshold", 0.3, 0.0, 1.0),),
            models=("usyd-community/vitpose-base-simple", "PekingU/rtdetr_r50vd_coco_o365"),  # and finds people
        ),
    }
)


def annotator_faults(where: str, name: str, params: Mapping[str, ParamValue]) -> list[Fault]:
    """Return all faults of an annotator's name and parameters; `where` names the control picture's place."""
    facts = ANNOTATORS.get(name)
    if facts is None:
        near = difflib.get_close_matches(name, ANNOTATORS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"annotators are: {', '.join(ANNOTATORS)}"
        return [Fault(where=f"{where}.annotator", message=f"there is no annotator {name}", hint=hint)]
    faults = list(_param_faults(f"{where}.annotator_params", name, facts, params))
    whole = whole_params(name, params) if not faults else {}
    if name == "canny" and whole and whole["low_threshold"] > whole["high_threshold"]:
        message = f"low_threshold {whole['low_threshold']:g} is above high_threshold {whole['high_threshold']:g}"
        faults.append(Fault(where=f"{where}.annotator_params", message=message, hint="exchange the two"))
    return faults


def _param_faults(where: str, name: str, facts: AnnotatorFacts, params: Mapping[str, ParamValue]) -> Iterator[Fault]:
    known = {param.name: param for param in facts.params}
    for key, value in params.items():
        param = known.get(key)
        if param is None:
            hint = f"{name} takes {', '.join(known)}" if known else f"{name} takes no parameters"
            yield Fault(where=f"{where}.{key}", message=f"{name} has no such parameter", hint=hint)
        elif isinstance(value, bool | str) or (param.whole and value % 1):
            kind = "a whole number" if param.whole else "a number"
            yield Fault(where=f"{where}.{key}", message=f"is {value!r}; it has to be {kind}")
        elif not param.least <= value <= param.most:
            message = f"is {str(value)[:20]}; it has to be from {param.least:g} to {param.most:g}"
            yield Fault(where=f"{where}.{key}", message=message)


def whole_params(name: str, params: Mapping[str, ParamValue]) -> dict[str, float]:
    """Return all parameters of the annotator, those that were not given at their defaults."""
    given = {key: float(value) for key, value in params.items()}
    return {param.name: given.get(param.name, float(param.default)) for param in ANNOTATORS[name].params}


def annotation_key(sha256: str, name: str, params: Mapping[str, ParamValue]) -> str:
    """Return the key of an annotation in the cache: equal for equal picture, annotator, version and parameters."""
    told = [sha256, name, ANNOTATORS[name].version, whole_params(name, params)]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode("ascii")).hexdigest()
