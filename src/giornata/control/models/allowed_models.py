"""Which models a project may name: the base models and the adapters that its operator allows.

A model is known by its bytes, its family, its source, and by names that no tenant can make up: what it was fetched
from, and the names that the operator shares it under.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from giornata.control.ports.model_registry import ModelRecord
from giornata.control.ports.store import Transaction
from giornata.domain.billing.quotas import ModelIdentity, QuotaName, Quotas, is_allowed
from giornata.domain.errors import QuotaFault
from giornata.domain.generation.model_kinds import KNOWN_REPOSITORIES, ModelKind
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.protocol.generation.checks.named_models import NamedModel, named_models
from giornata.protocol.model_references import ModelSource

ADAPTERS = frozenset({ModelKind.LORA, ModelKind.EMBEDDING, ModelKind.CONTROLNET})
"""All other kinds, and the roles of the same names, count as base models."""
SHOWN = 3
TRAINED_BASES = ("pretrained_model_name_or_path", "pretrained_vae_model_name_or_path")


def not_allowed(
    tx: Transaction, project_id: str, kind: str, spec: Mapping[str, Any], quotas: Quotas
) -> Iterator[QuotaFault]:
    """Yield a fault for each model of a job's whole spec that the project may not use. Kinds of one's own name none
    that the server knows of.
    """
    if quotas.allowed_base_models is None and quotas.allowed_adapters is None:
        return
    if kind in ORDER_KINDS:
        yield from _of_order(tx, project_id, list(named_models(spec)), quotas)
    elif kind == "train":
        yield from _of_training(tx, project_id, spec, quotas)


def not_allowed_from_outside(quotas: Quotas, sha256s: Mapping[str, str]) -> Iterator[QuotaFault]:
    """Yield a fault for each file, by its place in a request, that the project may not use as an adapter.

    An imported checkpoint or result would count as one that the project has trained.
    """
    for where, sha256 in sha256s.items():
        found = ModelIdentity(names=(), sha256=sha256, source=ModelSource.BLOB)
        yield from _fault(quotas, ModelKind.LORA, where, sha256, [found])


def model_is_allowed(model: ModelRecord, quotas: Quotas) -> bool:
    """Return True when the project may use this registered model."""
    return is_allowed(_patterns(quotas, model.kind), identity_of(model))


def identity_of(model: ModelRecord) -> ModelIdentity:
    """Return what is certain of a registered model. The name of an upload says nothing of it."""
    names = [] if model.source == ModelSource.BLOB else [model.reference]
    names += [model.name] if model.shared else []
    # Of a repository that the server has never looked into, a tenant's word for its family is not taken.
    family = model.family if model.sha256 or model.shared else KNOWN_REPOSITORIES.get(model.reference)
    return ModelIdentity(names=names, sha256=model.sha256, family=family, source=model.source)


def _of_order(tx: Transaction, project_id: str, places: Sequence[NamedModel], quotas: Quotas) -> Iterator[QuotaFault]:
    names = [name for place in places if (name := str(place.use["name"])).isprintable()]
    sha256s = [str(place.use["sha256"]) for place in places if place.use.get("sha256")]
    named, of_bytes = tx.models.named(project_id, names), tx.models.of_bytes(project_id, sha256s)
    for place in places:
        name, sha256 = str(place.use["name"]), place.use.get("sha256")
        known = [each for each in (named.get(name), of_bytes.get(str(sha256))) if each is not None]
        same = [identity_of(each) for each in known if each.sha256 == sha256]
        yield from _fault(quotas, place.role, place.where, name, same or [_unregistered(name, sha256)])


def _of_training(tx: Transaction, project_id: str, spec: Mapping[str, Any], quotas: Quotas) -> Iterator[QuotaFault]:
    for field in TRAINED_BASES:
        if name := spec.get(field):
            sha256 = spec.get("pretrained_model_sha256") if field == TRAINED_BASES[0] else None
            known = _registered_as(tx, project_id, str(name), sha256)
            yield from _fault(quotas, "base", f"spec.{field}", str(name), known or [_unregistered(str(name), sha256)])
    sha256 = spec.get("init_lora")
    if sha256 and quotas.allowed_adapters is not None:
        source = ModelSource.JOB if tx.quotas.is_trained(project_id, sha256) else ModelSource.BLOB
        found = ModelIdentity(names=(), sha256=sha256, source=source)
        yield from _fault(quotas, ModelKind.LORA, "spec.init_lora", sha256, [found])


def _registered_as(tx: Transaction, project_id: str, name: str, sha256: str | None) -> list[ModelIdentity]:
    """Return what is certain of the models that have this sha256, under whatever name."""
    if sha256 is None:
        return []
    found = [tx.models.named(project_id, [name]).get(name), tx.models.of_bytes(project_id, [sha256]).get(sha256)]
    return [identity_of(each) for each in found if each is not None and each.sha256 == sha256]


def _unregistered(name: str, sha256: str | None) -> ModelIdentity:
    """Return what is certain of a model that the node loads by its name."""
    return ModelIdentity(names=(name,), sha256=sha256, family=KNOWN_REPOSITORIES.get(name), source=ModelSource.HUB)


def _patterns(quotas: Quotas, role: str) -> Sequence[str] | None:
    return quotas.allowed_adapters if role in ADAPTERS else quotas.allowed_base_models


def _fault(quotas: Quotas, role: str, where: str, name: str, found: Iterable[ModelIdentity]) -> Iterator[QuotaFault]:
    patterns = _patterns(quotas, role)
    if patterns is None or any(is_allowed(patterns, each) for each in found):
        return
    quota = QuotaName.ADAPTERS if role in ADAPTERS else QuotaName.BASE_MODELS
    allowed = ", ".join(patterns[:SHOWN]) + (f" and {len(patterns) - SHOWN} more" if len(patterns) > SHOWN else "")
    hint = f"allowed are: {allowed}" if patterns else "none is allowed"
    message = f"{name} is not among the {quota.replace('_', ' ')} that this project may use"
    yield QuotaFault(where=where, message=message, hint=hint, quota=quota)
