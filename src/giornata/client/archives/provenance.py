"""Verify the signed record of a job without a server."""

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import ValidationError

from giornata.client.archives.model_card import card_as_written
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.provenance import Provenance, canonical_bytes

CHUNK_BYTES = 2**20
WHERE_IT_IS = "ask the operator for it: GET /v1/provenance-key"


def verified_provenance(record: Path, *, public_key: str, files: Sequence[Path] = ()) -> Provenance:
    """Return the record if its signature is of this key (base64), and each of the files is one that it names.

    Raises InvalidInput with every fault.
    """
    told = _read(record)
    faults = _signature_faults(told, public_key)
    try:
        provenance = Provenance.model_validate(told.get("provenance"))
    except ValidationError as error:
        raise InvalidInput(
            [Fault(where=str(record), message=f"is no record of a job ({error.error_count()} faults)")]
        ) from error
    known = {each.sha256: each.name for each in provenance.files}
    for file in files:
        sha256 = _card_sha256(file) if file.suffix == ".md" else file_sha256(file)
        if sha256 not in known:
            message = f"has the sha256 {sha256}, and the record names no such file"
            faults.append(Fault(where=str(file), message=message, hint="download the result again"))
    if faults:
        raise InvalidInput(faults)
    return provenance


def _read(record: Path) -> dict[str, Any]:
    try:
        told = json.loads(record.read_bytes())
    except (OSError, ValueError) as error:
        message = f"cannot be read as JSON ({type(error).__name__})"
        hint = "make one with: giornata job ID --provenance"
        raise InvalidInput([Fault(where=str(record), message=message, hint=hint)]) from error
    if not isinstance(told, dict) or not isinstance(told.get("provenance"), dict):
        raise InvalidInput([Fault(where=str(record), message="holds no record of a job")])
    return told


def _signature_faults(told: dict[str, Any], public_key: str) -> list[Fault]:
    """Return a fault unless the record's signature is of this key."""
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key, validate=True))
    except (ValueError, binascii.Error):
        return [Fault(where="--public-key", message="is not an Ed25519 key in base64", hint=WHERE_IT_IS)]
    try:
        signature = base64.b64decode(str(told.get("signature")), validate=True)
        key.verify(signature, canonical_bytes(told["provenance"]))
    except (ValueError, InvalidSignature):
        message = "is not signed by this key: it was changed, or another server made it"
        return [Fault(where="signature", message=message, hint="get the record again from the server")]
    return []


def _card_sha256(card: Path) -> str:
    """Return the SHA-256 of a card as the node wrote it. Raises InvalidInput when it cannot be read."""
    try:
        return hashlib.sha256(card_as_written(card.read_bytes())).hexdigest()
    except OSError as error:
        raise InvalidInput([Fault(where=str(card), message=f"cannot be read ({error.strerror})")]) from error


def file_sha256(file: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits. Raises InvalidInput when it cannot be read."""
    found = hashlib.sha256()
    try:
        with file.open("rb") as opened:
            while chunk := opened.read(CHUNK_BYTES):
                found.update(chunk)
    except OSError as error:
        raise InvalidInput([Fault(where=str(file), message=f"cannot be read ({error.strerror})")]) from error
    return found.hexdigest()
