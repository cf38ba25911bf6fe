"""The content of a webhook and its signature: the scheme of Standard Webhooks (standardwebhooks.com), version 1.

    webhook-id: evt_…              the same when a delivery is repeated: whoever has seen it need not look again
    webhook-timestamp: 1700000000  seconds since 1970, when it was sent
    webhook-signature: v1,BASE64   HMAC-SHA256 of "ID.TIMESTAMP.BODY" under the secret's bytes; one for each secret
                                   that is valid now, parted by blanks

The body is a `Delivery` as JSON: an event in the words of a job's history.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import Field

from giornata.protocol.model import Reply

ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER = "webhook-id", "webhook-timestamp", "webhook-signature"
SECRET_PREFIX = "whsec_"  # noqa: S105 - what a secret begins with
VERSION = "v1"
TOLERANCE_S = 300
FEWEST_SECRET_BYTES = 16


class Delivery(Reply):
    """The body: what happened to which job. `type` and `data` are those of `giornata.protocol.events`.

    `job_id` is null for an event that belongs to no job, such as `machine.quarantined`.
    """

    id: str
    type: str
    job_id: str | None
    at: datetime
    data: dict[str, Any] = Field(default_factory=dict)


def key_of(secret: str) -> bytes:
    """The bytes that sign: those behind `whsec_` in base64, or the text itself.

    Raises ValueError that says what is wrong with the secret.
    """
    if secret.startswith(SECRET_PREFIX):
        try:
            key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"what follows {SECRET_PREFIX} is not base64") from None
    else:
        key = secret.encode()
    if len(key) < FEWEST_SECRET_BYTES:
        raise ValueError(f"has {len(key)} bytes; at least {FEWEST_SECRET_BYTES} are needed")
    return key


def signed_headers(secrets: Sequence[str], *, delivery_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """The three headers that go with `body`, signed with each secret. Raises ValueError for one that is none."""
    signatures = (_signature(key_of(secret), delivery_id, timestamp_s, body) for secret in secrets)
    signed = " ".join(f"{VERSION},{each}" for each in signatures)
    return {ID_HEADER: delivery_id, TIMESTAMP_HEADER: str(timestamp_s), SIGNATURE_HEADER: signed}


def is_genuine(
    secret: str, headers: Mapping[str, str], body: bytes, *, now_s: float, tolerance_s: float = TOLERANCE_S
) -> bool:
    """Return True when `body` was signed with this secret, within the tolerance; for receivers of webhooks.

    `headers` are looked up in lower case. Several signatures may stand beside one another, parted by blanks.
    """
    try:
        delivery_id, timestamp_s = headers[ID_HEADER], int(headers[TIMESTAMP_HEADER])
        given = headers[SIGNATURE_HEADER].split()
    except (KeyError, ValueError):
        return False
    if abs(now_s - timestamp_s) > tolerance_s:
        return False
    wanted = f"{VERSION},{_signature(key_of(secret), delivery_id, timestamp_s, body)}".encode()
    return any(hmac.compare_digest(each.encode(), wanted) for each in given)


def _signature(key: bytes, delivery_id: str, timestamp_s: int, body: bytes) -> str:
    signed = f"{delivery_id}.{timestamp_s}.".encode() + body
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
