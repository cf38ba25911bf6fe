"""Turn the names of models in an order's spec into sha256s, or into faults.

    with no transaction     bring_models      files that are named by reference come into storage and the registry
    in the submission's     resolve_models    every name is looked up in the registry: a few queries, no waiting

What a name means is in the registry alone, so an order that was resolved once means the same bytes for ever.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from giornata.control.context import Context
from giornata.control.models.register import referred_model, uploaded_model
from giornata.control.models.stored_header import stored_facts
from giornata.control.ports.model_registry import ModelRecord
from giornata.control.ports.store import Transaction
from giornata.domain.errors import BlobMissing, Fault, InvalidInput, Unavailable
from giornata.domain.generation.model_header import name_faults
from giornata.domain.generation.model_kinds import TITLES, ModelFamily, ModelKind
from giornata.protocol.model_references import HubRepository, model_reference
from giornata.protocol.training.base_model import BaseModelFields
from giornata.protocol.training.model_names import is_single_file, looks_like_path

SHOWN = 3
ROLES: Mapping[str, frozenset[ModelKind]] = {
    "base": frozenset({ModelKind.BASE}),
    "refiner": frozenset({ModelKind.BASE, ModelKind.REFINER}),
    "vae": frozenset({ModelKind.VAE}),
    "lora": frozenset({ModelKind.LORA}),
    "embedding": frozenset({ModelKind.EMBEDDING}),
    "controlnet": frozenset({ModelKind.CONTROLNET}),
}
LOADED_BY_ENGINES = frozenset({"base", "refiner", "vae", "controlnet"})
"""Roles whose model may be a folder of the node, or a whole repository of the hub."""
SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
ENTRY = re.compile(r"spec\.pictures\.\d+")


class ModelPlace(Protocol):
    """A model that a spec names: `use` is the object of the spec, with `name` and `sha256`, and `where` its place.

    `role` is one of `PictureParams.files`. `protocol.generation.checks.named_models` yields those of a spec.
    """

    @property
    def where(self) -> str: ...

    @property
    def role(self) -> str: ...

    @property
    def use(self) -> dict[str, Any]: ...


def bring_models(ctx: Context, project_id: str, places: Iterable[ModelPlace]) -> list[Fault]:
    """Bring every file that is named by reference, and is not in the registry, into storage and the registry.

    The header of a registered LoRA is read again, once in a process: the LoRA may be older than a rule that would
    refuse it today. Call it before the transaction of the submission: it reads storage, and may download. Returns the
    faults of references that name nothing usable, and of such LoRAs. Where a source fails, those that were found
    before it are all; without any it raises Unavailable.
    """
    by_name = _by_name(places)
    with ctx.store.read() as tx:
        known = _registered(tx, project_id, list(by_name))
    faults: list[Fault] = []
    for name, place in by_name.items():
        if name in known:
            faults += _looked_at(ctx, known[name], place.where)
            continue
        try:
            found = _brought(ctx, project_id, name, place)
        except InvalidInput as refusal:
            faults += refusal.faults
        except Unavailable as error:
            if faults:
                return faults  # they keep the order from being placed, whether the source comes back or not
            raise Unavailable(f"{place.where}: {error}", public=f"{place.where}: {error.public}") from error
        else:
            if found is not None:
                with ctx.store.begin() as tx:
                    tx.models.add(found)
    return faults


def _looked_at(ctx: Context, model: ModelRecord, where: str) -> Sequence[Fault]:
    """Return why no node draws with a registered LoRA, by its header in storage."""
    if model.kind != ModelKind.LORA or model.sha256 is None or ctx.memory.is_sound_lora(model.sha256):
        return ()
    with ctx.store.read() as tx:
        blob = tx.uploads.blobs(model.project_id, [model.sha256]).get(model.sha256)
    if blob is None:
        return ()  # a lease of its pictures says so
    family = None if model.family is None else ModelFamily(model.family)
    try:
        stored_facts(
            ctx, blob.key, blob.size_bytes, where=where, kind=ModelKind.LORA, family=family, family_needed=False
        )
    except BlobMissing:
        return ()
    except InvalidInput as refusal:
        return refusal.faults
    ctx.memory.note_sound_lora(model.sha256)
    return ()


def is_brought(place: ModelPlace) -> bool:
    """Return True for a model that `bring_models` may have to bring: one named by reference or by sha256."""
    if place.use.get("sha256"):
        return True
    try:
        reference = model_reference(str(place.use["name"]))
    except ValueError:
        return False
    return reference is not None and not isinstance(reference, HubRepository)


def not_looked_up(tx: Transaction, project_id: str, places: Sequence[ModelPlace]) -> list[ModelPlace]:
    """Return the models that `bring_models` would have to bring: they are not in the registry yet."""
    brought = [place for place in places if is_brought(place)]
    known = _registered(tx, project_id, list(_by_name(brought))) if brought else {}
    return [place for place in brought if _key(place) not in known]


def resolve_models(
    tx: Transaction, ctx: Context, project_id: str, places: Iterable[ModelPlace], *, notes_use: bool = True
) -> list[Fault]:
    """Write the sha256 of each model into its use, and return the faults of all: names that stand for nothing, files
    of another kind or family, and files that no node can keep.

    A use keeps its name, but for a registered repository of the hub, whose name the engine needs. `notes_use` is
    False for what is asked without being submitted.
    """
    listed = list(places)
    known = _registered(tx, project_id, list(_by_name(listed)))
    found = [(place, known[_key(place)]) for place in listed if _key(place) in known]
    faults = [fault for place in listed if _key(place) not in known for fault in _unknown(tx, project_id, place)]
    for place, model in found:
        faults += _kind_faults(place, model)
        place.use["sha256"] = model.sha256
        if model.sha256 is None:
            place.use["name"] = model.reference
    faults += _family_faults(listed, {place.where: model for place, model in found})
    faults += _disk_faults(tx, ctx, project_id, found)
    if notes_use and not faults:
        used = {(model.project_id, model.name): model for _, model in found}
        tx.models.use(list(used.values()), at_ms=ctx.clock.now_ms())
    return faults


def resolve_base(
    tx: Transaction, ctx: Context, project_id: str, spec: BaseModelFields, *, notes_use: bool = True
) -> tuple[Mapping[str, str], list[Fault]]:
    """Return the fields that a registered base sets in the spec of a training job, and the faults.

    A registered file sets its sha256, and a registered repository its name on the hub. A base that is not registered
    sets nothing: the node finds it by its name. With a revision a file on the hub is not looked up. The name is one
    that `may_be_registered`.
    """
    name, given = spec.pretrained_model_name_or_path, spec.pretrained_model_sha256
    is_file = is_single_file(name)
    if is_file and spec.revision is not None:
        return {}, []
    model = tx.models.named(project_id, [name]).get(name)
    if is_file and (model is None or (given is not None and given != model.sha256)):
        return {}, []  # the file on the hub is meant, whatever the registry has under this name
    if model is None:
        return {}, list(_of_unregistered(name, given))
    place = _BasePlace(name)
    faults = [*_setting_faults(spec, model), *_kind_faults(place, model)]
    faults += _disk_faults(tx, ctx, project_id, [(place, model)])
    if notes_use and not faults:
        tx.models.use([model], at_ms=ctx.clock.now_ms())
    if model.sha256 is None:
        return {"pretrained_model_name_or_path": model.reference}, faults
    return {"pretrained_model_sha256": model.sha256}, faults


class _BasePlace:
    """The base of a training job, as a `ModelPlace`."""

    where, role = "spec.pretrained_model_name_or_path", "base"

    def __init__(self, name: str) -> None:
        self.use: dict[str, Any] = {"name": name}


def _of_unregistered(name: str, given: str | None) -> Iterator[Fault]:
    if given is not None:
        message = f"there is no registered model {name}, and a sha256 applies to a single file only"
        yield Fault(where=_BasePlace.where, message=message, hint="giornata models list shows the models")


def _setting_faults(spec: BaseModelFields, model: ModelRecord) -> Iterator[Fault]:
    """Yield a fault for each setting that a registered file contradicts, or that would have no effect."""
    if model.sha256 is None:
        if spec.pretrained_model_sha256 is not None:
            message = f"{model.name} is a repository of the hub, and a sha256 applies to a single file"
            yield Fault(where="spec.pretrained_model_sha256", message=message, hint="leave it out")
        return
    if spec.pretrained_model_sha256 not in {None, model.sha256}:
        message = f"{model.name} has the sha256 {model.sha256}"
        yield Fault(where="spec.pretrained_model_sha256", message=message, hint="leave it out: the server sets it")
    for field in ("revision", "variant"):
        if getattr(spec, field) is not None:
            message = f"has no effect with the registered file {model.name}"
            yield Fault(where=f"spec.{field}", message=message, hint="leave it out")


def _registered(tx: Transaction, project_id: str, keys: Sequence[str]) -> Mapping[str, ModelRecord]:
    """Return the models of these names and sha256s. Files are the same under whatever name."""
    keys = [key for key in keys if key.isprintable()]  # others are no business of the database
    by_bytes = [key for key in keys if SHA256.fullmatch(key)]
    return {**tx.models.of_bytes(project_id, by_bytes), **tx.models.named(project_id, keys)}


def _by_name(places: Iterable[ModelPlace]) -> dict[str, ModelPlace]:
    """Return the first place of each model that is looked up in the registry."""
    found: dict[str, ModelPlace] = {}
    for place in places:
        found.setdefault(_key(place), place)
    return found


def _key(place: ModelPlace) -> str:
    """Return the name in the registry. A file that is given by its sha256 has the sha256 as its name there."""
    return str(place.use.get("sha256") or place.use["name"])


def _brought(ctx: Context, project_id: str, name: str, place: ModelPlace) -> ModelRecord | None:
    """Return the new model of a reference; None for a name that is none, and for what only the engine can load."""
    if place.use.get("sha256"):
        return uploaded_model(ctx, project_id, name, where=f"{place.where}.sha256")
    try:
        reference = model_reference(name)
    except ValueError:
        return None
    if reference is None or name_faults(name, where=place.where) or isinstance(reference, HubRepository):
        return None
    return referred_model(ctx, project_id, reference, name, where=place.where)


def _unknown(tx: Transaction, project_id: str, place: ModelPlace) -> Iterator[Fault]:
    """Yield the fault of a name that the registry does not have, unless the engine can load what it names."""
    name, where = str(place.use["name"]), place.where
    wrong = name_faults(name, where=where)
    if wrong:
        yield from wrong
        return
    try:
        reference = model_reference(name)
    except ValueError as error:
        yield Fault(where=where, message=f"{name} {error}")
        return
    if place.role in LOADED_BY_ENGINES and (isinstance(reference, HubRepository) or looks_like_path(name)):
        return
    if isinstance(reference, HubRepository):
        hint = f"name the file: {name}:FILE.safetensors"
        yield Fault(where=where, message=f"{name} is a whole repository, and a {place.role} is one file", hint=hint)
    elif reference is not None:
        hint = f"add it first: giornata models add NAME {name}"
        yield Fault(where=where, message=f"{name} is not in the project's registry", hint=hint)
    else:
        names = [each.name for each in tx.models.page(project_id, before=None, limit=1000)]
        near = difflib.get_close_matches(name, names, n=SHOWN)
        hint = f"did you mean {' or '.join(near)}?" if near else "giornata models list shows the models"
        yield Fault(where=where, message=f"there is no model {name}", hint=hint)


def _kind_faults(place: ModelPlace, model: ModelRecord) -> Iterator[Fault]:
    if ModelKind(model.kind) not in ROLES[place.role]:
        message = f"{model.name} is a {model.kind}, and a {place.role} is needed here"
        yield Fault(where=place.where, message=message)


def _family_faults(places: Sequence[ModelPlace], models: Mapping[str, ModelRecord]) -> Iterator[Fault]:
    """Yield a fault for each model of another family than all bases that it may be drawn with. `models` are those of
    the registry, by their places.
    """
    bases = [place.where for place in places if place.role == "base"]
    families = {where: ModelFamily(model.family) for where, model in models.items() if model.family is not None}
    for place in places:
        family, entry = families.get(place.where), ENTRY.match(place.where)
        if place.role == "base" or family is None:
            continue
        own = [base for base in bases if entry and base == f"{entry[0]}.model"]
        its_bases = own or [base for base in bases if ENTRY.match(base) is None]
        known = {families[base] for base in its_bases if base in families}
        if known and family not in known and all(base in families for base in its_bases):
            of_base = " and ".join(sorted(TITLES[each] for each in known))
            message = f"is of the family {TITLES[family]}, and the base model is of {of_base}"
            hint = "choose files that were made for the base model's family"
            yield Fault(where=place.where, message=message, hint=hint)


def _disk_faults(
    tx: Transaction, ctx: Context, project_id: str, found: Sequence[tuple[ModelPlace, ModelRecord]]
) -> Iterator[Fault]:
    """Yield a fault for each file that is larger than what any connected node keeps."""
    if not found:
        return
    since_ms = ctx.clock.now_ms() - round(ctx.policy.node_gone_after_s * 1000)
    most = tx.models.largest_store_bytes(project_id, seen_since_ms=since_ms)
    for place, model in found:
        if most is not None and model.size_bytes > most:
            message = f"{model.name} has {model.size_bytes} bytes; no connected node keeps more than {most}"
            hint = "give a node more room for models (model_store_bytes), or choose a smaller file"
            yield Fault(where=place.where, message=message, hint=hint)
