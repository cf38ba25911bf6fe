"""Read what a model file is from its first bytes in storage."""

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

from giornata.control.context import Context
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.generation.model_header import LENGTH_BYTES, header_end, read_header, size_faults
from giornata.domain.generation.model_kinds import TITLES, ModelFacts, ModelFamily, ModelKind, facts_of_model


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A model file among the blobs of a project."""

    sha256: str
    size_bytes: int
    facts: ModelFacts


def stored_facts(
    ctx: Context,
    key: str,
    size_bytes: int,
    *,
    where: str,
    kind: ModelKind | None = None,
    family: ModelFamily | None = None,
    family_needed: bool = True,
) -> ModelFacts:
    """Return what a stored file is; `kind` and `family` are what the caller states.

    Raises InvalidInput for a file that is no whole safetensors file, that contradicts what was said, or whose family
    is needed and unknown; BlobMissing when storage has it no more.
    """
    beginning = b""
    with closing(_chunks(ctx, key)) as chunks:
        while lacks_header(beginning, where=where) and (chunk := next(chunks, None)) is not None:
            beginning += chunk
    header = read_header(beginning, where=where)
    faults = size_faults(header, size_bytes, where=where)
    if faults:
        raise InvalidInput(faults)
    found = facts_of_model(header, where=where)
    needed = family_needed and found.kind is not ModelKind.VAE
    return _agreed(found, kind=kind, family=family, family_needed=needed, where=where)


def lacks_header(beginning: bytes, *, where: str) -> bool:
    """Return True when more of the file is needed to read its header.

    Raises InvalidInput as soon as the bytes are those of another format.
    """
    return len(beginning) <= LENGTH_BYTES or len(beginning) < header_end(beginning, where=where)


def _agreed(
    found: ModelFacts, *, kind: ModelKind | None, family: ModelFamily | None, family_needed: bool, where: str
) -> ModelFacts:
    """Return the facts of the file with what was said of it. Raises InvalidInput where the two differ."""
    faults = []
    if kind is not None and kind is not found.kind:
        faults.append(Fault(where=where, message=f"is a {found.kind} file, not a {kind}"))
    if family is not None and found.family is not None and family is not found.family:
        message = f"is of the family {TITLES[found.family]}, not {TITLES[family]}"
        faults.append(Fault(where=where, message=message))
    known = found.family or family
    if known is None and family_needed:
        hint = "register it with its family: giornata models add NAME … --family sdxl"
        faults.append(Fault(where=where, message="does not tell the family of its base model", hint=hint))
    if faults:
        raise InvalidInput(faults)
    return ModelFacts(kind=found.kind, family=known)


def _chunks(ctx: Context, key: str) -> Generator[bytes, None, None]:
    yield from ctx.blobs.read(key)
