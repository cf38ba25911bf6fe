"""Pictures that wait for an annotation which a model makes: their place in the queue, and who may make it.

Annotators with weights run on nodes of the kind `preprocess`. A picture that needs such an annotation waits under the
base key of its annotator. Once its project keeps the annotation, the picture waits under the keys of its drawing.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from giornata.domain.generation.picture import LEASE_KIND, ORDER_KINDS
from giornata.protocol.generation.annotators import ANNOTATORS, annotation_key, annotator_faults
from giornata.protocol.generation.preprocess import PREPROCESS_KIND, AnnotationParams, annotator_base_key

CONTROLNETS = "controlnets"


class QueueKeys(NamedTuple):
    """The keys under which a picture is queued."""

    batch_key: str
    base_key: str


def _model_bases() -> dict[str, str]:
    with_models = {name: facts for name, facts in ANNOTATORS.items() if facts.models}
    return {
        annotator_base_key(name, version=version): name
        for name, facts in with_models.items()
        for version in range(1, facts.version + 1)
    }


MODEL_BASES: Mapping[str, str] = MappingProxyType(_model_bases())
"""The annotators that run a model, by their base keys. Keys of earlier versions may still be in the queue."""


def node_kind_of_base(base_key: str) -> str:
    """Return the kind that a node has to offer for pictures of this base."""
    return PREPROCESS_KIND if base_key in MODEL_BASES else LEASE_KIND


def node_kind(kind: str, spec: Mapping[str, Any]) -> str:
    """Return the kind that a node offers when it takes jobs of this kind and spec, or their pictures."""
    if kind not in ORDER_KINDS:
        return kind
    facts = ANNOTATORS.get(str(spec.get("annotator"))) if kind == PREPROCESS_KIND else None
    return PREPROCESS_KIND if facts is not None and facts.models else LEASE_KIND


def model_annotations(kind: str, spec: Mapping[str, Any], differs: Mapping[str, Any]) -> list[AnnotationParams]:
    """Return the annotations by models that a picture needs before it is drawn, in the order in which it waits for
    them. `spec` and `differs` are those of a stored order and its picture."""
    if kind == PREPROCESS_KIND:
        return []
    uses = differs.get(CONTROLNETS, spec.get(CONTROLNETS)) or ()
    found = {}
    for use in uses:
        name, params = use.get("annotator"), use.get("annotator_params") or {}
        if name in ANNOTATORS and ANNOTATORS[name].models and not annotator_faults("", name, params):
            key = annotation_key(use["image"], name, params)
            found[key] = AnnotationParams(image=use["image"], annotator=name, annotator_params=params)
    return list(found.values())


def key_of(annotation: AnnotationParams) -> str:
    """Return the key of an annotation in its project's cache."""
    return annotation_key(annotation.image, annotation.annotator, annotation.annotator_params)


def queue_keys(
    project_id: str, needed: Iterable[AnnotationParams], *, kept: Iterable[str], drawing: QueueKeys
) -> QueueKeys:
    """Return the keys under which a picture is queued while its project has `kept` these annotations.

    No two projects share a lease of such pictures: an annotation comes from the cache of its own project.
    """
    needed, there = list(needed), set(kept)
    for annotation in needed:
        if (key := key_of(annotation)) not in there:
            base_key = annotator_base_key(annotation.annotator)
            return QueueKeys(_digest([key, project_id]), base_key)
    return drawing._replace(batch_key=_digest([drawing.batch_key, project_id])) if needed else drawing


def awaits_annotation(batch_key: str, base_key: str) -> bool:
    """Return True for a picture that waits for an annotation. A picture of an order of annotations has equal keys."""
    return base_key in MODEL_BASES and batch_key != base_key


def awaited(project_id: str, batch_key: str, needed: list[AnnotationParams]) -> AnnotationParams:
    """Return the annotation for which a picture waits under this batch key; the first one under a key of before."""
    mine = (each for each in needed if _digest([key_of(each), project_id]) == batch_key)
    return next(mine, needed[0])


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode("ascii")).hexdigest()[:32]
