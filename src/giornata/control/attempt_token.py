"""The token that a lease carries: it names one attempt, and whoever holds it writes for that attempt.

Stateless, so that a claim whose reply was lost can be answered with the same token again.
"""

import hashlib
import hmac

from giornata.control.context import Context
from giornata.control.install import signing_key
from giornata.domain.errors import Unauthenticated


def attempt_token(key: bytes, attempt_id: str) -> str:
    """`att_….<HMAC-SHA256 of the attempt's id>`."""
    return f"{attempt_id}.{_mac(key, attempt_id)}"


def verify(ctx: Context, attempt_id: str, token: str) -> None:
    """Raises Unauthenticated unless the token is this attempt's. Whether the attempt lives is asked elsewhere."""
    expected = attempt_token(signing_key(ctx), attempt_id)
    if not hmac.compare_digest(expected.encode(), token.encode()):
        raise Unauthenticated("this token is not the attempt's; send the token that came with its lease")


def _mac(key: bytes, attempt_id: str) -> str:
    # The purpose is part of the message: the same key signs URLs.
    return hmac.new(key, f"attempt-token:{attempt_id}".encode(), hashlib.sha256).hexdigest()
