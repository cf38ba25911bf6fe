"""The signed record of how a job's result came about."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from giornata.domain.jobs.audits import AuditState
from giornata.domain.jobs.job import JobState
from giornata.protocol.model import Reply

FORMAT = 1
MOST_CHECKPOINTS = 10_000


class ProvenanceCheckpoint(Reply):
    """A checkpoint as it was committed; most of them are not kept."""

    step: int
    sha256: str
    attempt: int | None = None
    machine: str = Field("", description="Name of the machine for the project: a pseudonym for the operator's.")
    committed_at: datetime


class ProvenanceAudit(Reply):
    """A stretch of steps that other machines were to run again, and what came of it."""

    from_step: int
    to_step: int
    sha256: str = Field(description="sha256 of the checkpoint at the end of the stretch, as it was committed.")
    state: AuditState
    machine: str = Field(description="The machine that is audited.")
    repeated_by: tuple[str, ...] = Field((), description="Machines that ran the stretch again.")
    message: str = ""
    decided_at: datetime | None = None


class ProvenanceFile(Reply):
    """A result of the job."""

    name: str
    sha256: str
    size_bytes: int


class Provenance(Reply):
    """The origin of a job's result. Hashes are SHA-256 in hexadecimal digits."""

    format: int = FORMAT
    job_id: str
    retry_of: str | None = None
    state: JobState
    suspect: bool
    spec_sha256: str = Field(description="sha256 of the spec as canonical JSON: sorted keys, no spaces, ASCII.")
    datasets: dict[str, str] = Field(default_factory=dict, description="Ids of datasets by field of the spec.")
    data_sha256: str | None = Field(
        None, description="sha256 over pictures and captions, as the last node reported. null: none."
    )
    base_sha256: str | None = Field(
        None, description="sha256 of the base model's weights, as the last node reported. null: none."
    )
    fingerprints: tuple[dict[str, Any], ...] = Field(
        (),
        description="Conditions of the steps, as the last node told: `from_step` and `fingerprint` of each change.",
    )
    checkpoints: tuple[ProvenanceCheckpoint, ...]
    audits: tuple[ProvenanceAudit, ...]
    files: tuple[ProvenanceFile, ...]
    issued_at: datetime


class SignedProvenance(Reply):
    """A record with the signature of its canonical JSON, in base64. Its key is that of `GET /v1/provenance-key`."""

    provenance: Provenance
    algorithm: Literal["ed25519"] = "ed25519"
    public_key: str = Field(
        description="Public key in base64. Compare it with a key that you got from the server before."
    )
    signature: str


class ProvenanceKey(Reply):
    """The public key with which records of jobs are verified, in base64."""

    algorithm: Literal["ed25519"] = "ed25519"
    public_key: str


def canonical_bytes(value: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """Return the one spelling of a JSON object or list that is hashed and signed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")
