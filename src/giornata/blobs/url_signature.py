"""Sign URLs for storage that has no server of its own.

A signature covers the method, the key and the whole query (size, hash, part, expiry, file name …), so a URL is
good for exactly the request that it was made for. It does not cover scheme, host and port: the server may come
back on another port while a node still holds its URLs.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, urlencode

from giornata.control.ports.blobs import BlobRequest, SignedRequest
from giornata.control.ports.clock import Clock
from giornata.domain.errors import Fault, Forbidden, InvalidInput

PATH = "/v1/blobs/"
SHORTEST_KEY_BYTES = 32
_EXPIRES, _SIGNATURE = "expires", "signature"
_PURPOSE = "giornata blob url 1"


class UrlSigner:
    """Signs and checks URLs. `base_url` is asked anew for every URL."""

    def __init__(self, *, signing_key: bytes, base_url: Callable[[], str], clock: Clock) -> None:
        if len(signing_key) < SHORTEST_KEY_BYTES:
            hint = f"give at least {SHORTEST_KEY_BYTES} random bytes"
            raise InvalidInput([Fault(where="signing_key", message="too short to be safe", hint=hint)])
        self._signing_key, self._base_url, self._clock = signing_key, base_url, clock

    def sign(self, method: str, key: str, query: Mapping[str, str], *, expires_in_s: int) -> SignedRequest:
        """Return a request that `checked` lets through for `expires_in_s` seconds."""
        expires_ms = self._clock.now_ms() + expires_in_s * 1000
        signed = {**query, _EXPIRES: str(expires_ms)}
        whole = {**signed, _SIGNATURE: self._signature(method, key, signed)}
        return SignedRequest(
            method=method,
            url=f"{self._base_url().rstrip('/')}{PATH}{quote(key)}?{urlencode(whole)}",
            expires_at=datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=expires_ms),
        )

    def checked(self, request: BlobRequest, *, names: tuple[str, ...]) -> Mapping[str, str]:
        """Return the query of a request with a good signature. Raises Forbidden for any other.

        `names` are the parameters that this kind of request needs: a URL for a part has others than one for a
        whole object, and neither stands for the other.
        """
        signed = {name: value for name, value in request.query.items() if name != _SIGNATURE}
        given = request.query.get(_SIGNATURE, "")
        right = self._signature(request.method, request.key, signed)
        if not hmac.compare_digest(given.encode("utf-8", "replace"), right.encode()):
            raise Forbidden("the URL's signature is missing or wrong for this request; ask for a new URL")
        if self._clock.now_ms() >= int(signed[_EXPIRES]):
            raise Forbidden("the URL has expired; ask for a new one")
        if not all(name in signed for name in names):
            raise Forbidden("the URL was signed for another kind of request")
        return signed

    def _signature(self, method: str, key: str, query: Mapping[str, str]) -> str:
        # Neither a method nor a checked key holds a line feed, and urlencode leaves none.
        text = "\n".join(
            (_PURPOSE, method, quote(key, errors="replace"), urlencode(sorted(query.items()), errors="replace"))
        )
        return hmac.new(self._signing_key, text.encode(), hashlib.sha256).hexdigest()
