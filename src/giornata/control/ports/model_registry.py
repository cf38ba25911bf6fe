"""Queries for the registry of model files, and the outside world that model files come from."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from giornata.control.ports.node_queries.work_rows import BlobRow
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.generation.model_kinds import ModelFamily
from giornata.protocol.model_references import CivitaiVersion, WebFile
from giornata.protocol.training.model_names import HubFile

RemoteReference = WebFile | HubFile | CivitaiVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """A named model. `sha256` is None for one that the engine loads from the hub under its `reference`.

    Instants are epoch milliseconds of the server's clock. One that a spec named by a reference has that as its name.
    """

    project_id: str
    name: str
    sha256: str | None
    kind: str
    family: str | None
    size_bytes: int
    source: str
    reference: str
    pinned: bool
    shared: bool
    created_at_ms: int
    used_at_ms: int
    created_by: str | None = None


class Models(Protocol):
    """Queries for named models. `project_id` sees its own models, and those that the operator shares."""

    def add(self, model: ModelRecord) -> bool:
        """Insert the model; False when the project has one of this name."""

    def named(self, project_id: str, names: Sequence[str]) -> Mapping[str, ModelRecord]:
        """Return the models of these names; a project's own goes before a shared one."""

    def of_bytes(self, project_id: str, sha256s: Sequence[str]) -> Mapping[str, ModelRecord]:
        """Return a model for each sha256 that some model of the project, or a shared one, has."""

    def page(self, project_id: str, *, before: tuple[int, str] | None, limit: int) -> list[ModelRecord]:
        """Return models that the project sees, newest first."""

    def set_pinned(self, project_id: str, name: str, *, pinned: bool) -> ModelRecord | None:
        """Change one of the project's own models; None when it has none of this name."""

    def drop(self, project_id: str, name: str) -> ModelRecord | None:
        """Forget one of the project's own models, and return it."""

    def use(self, models: Sequence[ModelRecord], *, at_ms: int) -> None:
        """Note that an order names these models."""

    def largest_store_bytes(self, project_id: str, *, seen_since_ms: int) -> int | None:
        """Return the most bytes of models that a node for this project keeps, of those heard of lately; None when
        there is no node, or one of which it is not known.
        """

    def shared_blobs(self, sha256s: Sequence[str]) -> Mapping[str, BlobRow]:
        """Return where the bytes of shared models lie."""

    def held_blobs(self, order_ids: Sequence[str], sha256s: Sequence[str]) -> Mapping[str, BlobRow]:
        """Return where the bytes of models lie that these orders hold, whether registered or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteModel:
    """A file at a source, as the source describes it: nothing here is verified. `name` is for messages."""

    name: str
    url: str
    sha256: str | None = None
    size_bytes: int | None = None
    family: ModelFamily | None = None


class ModelSources(Protocol):
    """The places outside that model files are fetched from.

    All methods raise InvalidInput, whose faults stand at `where`, when the reference names nothing that can be had,
    and Unavailable when the source does not answer, stalls or breaks off.
    """

    def find(self, reference: RemoteReference, *, token: str | None, where: str) -> RemoteModel:
        """Return what the source says of the file."""

    def open(self, model: RemoteModel, *, token: str | None, where: str) -> AbstractContextManager[Iterator[bytes]]:
        """Open the file's bytes. The token is sent to the source itself, and to no host that it redirects to."""


class NoModelSources:
    """The sources of an installation that fetches nothing from outside."""

    def find(self, reference: RemoteReference, *, token: str | None, where: str) -> RemoteModel:
        """Raises InvalidInput, whatever the reference is."""
        del reference, token
        raise _fetches_nothing(where)

    def open(self, model: RemoteModel, *, token: str | None, where: str) -> AbstractContextManager[Iterator[bytes]]:
        """Raises InvalidInput, whatever the model is."""
        del model, token
        raise _fetches_nothing(where)


def _fetches_nothing(where: str) -> InvalidInput:
    return InvalidInput([Fault(where=where, message="this server fetches no models from outside", hint="upload it")])
