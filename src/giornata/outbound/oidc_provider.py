"""Signs people in at an OpenID provider: OpenID Connect Core 1.0, the authorization code flow with PKCE.

Authlib prepares the requests and checks the claims; joserfc checks signatures. Every request goes to an address that
was judged: a provider's metadata may name any URL.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri, prepare_token_request
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from giornata.control.ports.identity_provider import AuthorizationRequest, ProviderIdentity
from giornata.domain.errors import Fault, InvalidInput, Unauthenticated, Unavailable
from giornata.outbound.public_addresses import AddressRule

# Signatures that need the provider's private key. With HS256 the client secret would do, and with none nothing.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
DISCOVERY = "/.well-known/openid-configuration"
LEEWAY_S = 30
KEPT_MS = 3_600_000
KEYS_AGAIN_AFTER_MS = 10_000
MOST_REPLY_BYTES = 2**18
MOST_KEYS = 100
MOST_TOKEN_CHARS = 2**15
PATIENCE_S = 15.0
TIMEOUT = httpx.Timeout(5.0)
WHERE = "oidc_issuer"
REFUSAL = "the provider's answer to this sign-in is not good; begin again"
OIDC_HINT = "name the network in oidc_networks if the provider is in your own"


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcClient:
    """The registration of this installation at the provider. Without a secret it is a public client."""

    issuer: str
    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    scopes: tuple[str, ...] = ("openid", "email", "profile")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metadata:
    """The part of the provider's metadata that a sign-in needs (OpenID Connect Discovery 1.0, section 3)."""

    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    algorithms: tuple[str, ...]
    auth_method: str


class OidcProvider:
    """Implements `giornata.control.ports.identity_provider.IdentityProvider`. Thread-safe.

    Metadata and keys are kept for an hour. A token whose key is not among the known ones has them fetched anew.
    """

    def __init__(
        self,
        client: OidcClient,
        *,
        name: str,
        http: httpx.Client,
        rule: AddressRule,
        now_ms: Callable[[], int],
    ) -> None:
        self.issuer, self.name = client.issuer, name
        self._client, self._http, self._rule, self._now_ms = client, http, rule, now_ms
        self._lock = threading.Lock()
        self._metadata: tuple[int, _Metadata] | None = None
        self._keys: tuple[int, KeySet] | None = None

    def authorization_url(self, request: AuthorizationRequest) -> str:
        """Return the page of the provider. See `IdentityProvider`."""
        url: str = prepare_grant_uri(
            self._discovered().authorization_endpoint,
            client_id=self._client.client_id,
            response_type="code",
            redirect_uri=request.redirect_uri,
            scope=" ".join(self._client.scopes),
            state=request.state,
            nonce=request.nonce,
            code_challenge=create_s256_code_challenge(request.code_verifier),
            code_challenge_method="S256",
        )
        return url

    def identity(self, request: AuthorizationRequest, code: str, *, at_ms: int) -> ProviderIdentity:
        """Exchange the code and check the ID token. See `IdentityProvider`."""
        metadata = self._discovered()
        token = self._exchanged(metadata, request, code)
        text, access_token = token.get("id_token"), token.get("access_token")
        if not isinstance(text, str) or len(text) > MOST_TOKEN_CHARS:
            raise Unauthenticated(REFUSAL)
        claims = self._verified(metadata, text)
        params = {"nonce": request.nonce, "client_id": self._client.client_id, "access_token": access_token}
        options: Any = {
            "iss": {"essential": True, "value": self.issuer},
            "aud": {"essential": True, "value": self._client.client_id},
        }
        try:
            checked = CodeIDToken(claims.claims, claims.header, options, params)
            checked.validate(now=at_ms // 1000, leeway=LEEWAY_S)
        except (JoseError, ValueError, TypeError) as error:
            raise Unauthenticated(REFUSAL) from error
        return self._identity_of(claims.claims)

    def _identity_of(self, claims: Mapping[str, Any]) -> ProviderIdentity:
        subject, email, name = claims.get("sub"), claims.get("email"), claims.get("name")
        if not isinstance(subject, str) or not subject or len(subject) > 255 or not subject.isprintable():
            raise Unauthenticated(REFUSAL)
        return ProviderIdentity(
            issuer=self.issuer,
            subject=subject,
            email=email if isinstance(email, str) else None,
            email_verified=claims.get("email_verified") is True,
            name=name if isinstance(name, str) else None,
        )

    def _exchanged(self, metadata: _Metadata, request: AuthorizationRequest, code: str) -> dict[str, Any]:
        body = prepare_token_request(
            "authorization_code", redirect_uri=request.redirect_uri, code=code, code_verifier=request.code_verifier
        )
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        auth = ClientAuth(self._client.client_id, self._client.client_secret, metadata.auth_method)
        url, headers, body = auth.prepare("POST", metadata.token_endpoint, headers, body)
        status, document = self._asked(url, method="POST", headers=headers, content=body.encode())
        if httpx.codes.is_client_error(status):
            raise Unauthenticated(REFUSAL)
        return self._object(status, document)

    def _verified(self, metadata: _Metadata, text: str) -> jwt.Token:
        """Return the token whose signature is one of the provider's. Raises Unauthenticated, Unavailable."""
        try:
            return jwt.decode(text, self._key_set(metadata), algorithms=list(metadata.algorithms))
        except (JoseError, ValueError, TypeError, RecursionError):
            pass
        # The provider may have changed its keys since they were fetched.
        try:
            return jwt.decode(text, self._key_set(metadata, anew=True), algorithms=list(metadata.algorithms))
        except (JoseError, ValueError, TypeError, RecursionError) as error:
            raise Unauthenticated(REFUSAL) from error

    def _key_set(self, metadata: _Metadata, *, anew: bool = False) -> KeySet:
        with self._lock:
            now_ms, kept_ms = self._now_ms(), KEYS_AGAIN_AFTER_MS if anew else KEPT_MS
            if self._keys is not None and 0 <= now_ms - self._keys[0] < kept_ms:
                return self._keys[1]
            document = self._object(*self._asked(metadata.jwks_uri))
            try:
                # Keys of kinds that this library does not know are no reason to refuse the others.
                listed = [each for each in document["keys"] if each.get("use", "sig") == "sig"][:MOST_KEYS]
                keys = KeySet.import_key_set({"keys": [each for each in listed if _is_known(each)]})
            except (JoseError, KeyError, ValueError, TypeError, AttributeError) as error:
                raise _unusable("its keys cannot be read") from error
            self._keys = (now_ms, keys)
            return keys

    def _discovered(self) -> _Metadata:
        with self._lock:
            now_ms = self._now_ms()
            if self._metadata is not None and 0 <= now_ms - self._metadata[0] < KEPT_MS:
                return self._metadata[1]
            document = self._object(*self._asked(self.issuer.rstrip("/") + DISCOVERY))
            if document.get("issuer") != self.issuer:
                raise _unusable("its metadata name another issuer")
            metadata = _metadata_of(document, has_secret=self._client.client_secret is not None)
            self._metadata = (now_ms, metadata)
            return metadata

    def _object(self, status: int, document: bytes) -> dict[str, Any]:
        try:
            found = json.loads(document) if status == httpx.codes.OK else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise _unusable(f"it answered {status}" + (", and no JSON object" if status == httpx.codes.OK else ""))
        return found

    def _asked(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> tuple[int, bytes]:
        """Return status and body of one reply; redirects are not followed. Raises Unavailable."""
        sent = {"Accept-Encoding": "identity", "User-Agent": "giornata", **(headers or {})}
        try:
            request = self._rule.request(httpx.URL(url), sent, where=WHERE, method=method, content=content)
            request.extensions = {**request.extensions, "timeout": TIMEOUT.as_dict()}
            response = self._http.send(request, stream=True, auth=None, follow_redirects=False)
            try:
                return response.status_code, _read(response)
            finally:
                response.close()
        except InvalidInput as error:  # the operator's setting, or an endpoint that the provider named
            raise _unusable("; ".join(map(str, error.faults))) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _unusable(f"it does not answer ({type(error).__name__})") from error


def _read(response: httpx.Response) -> bytes:
    content, ends_s = b"", time.monotonic() + PATIENCE_S
    for chunk in response.iter_raw():
        content += chunk
        if len(content) > MOST_REPLY_BYTES or time.monotonic() > ends_s:
            raise _unusable("its answer is too long or too slow")
    return content


def _metadata_of(document: Mapping[str, Any], *, has_secret: bool) -> _Metadata:
    urls = {}
    for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
        url = document.get(name)
        if not isinstance(url, str) or urlsplit(url).scheme not in {"https", "http"}:
            raise _unusable(f"its metadata have no {name}")
        urls[name] = url
    offered = document.get("id_token_signing_alg_values_supported", ["RS256"])
    algorithms = tuple(each for each in ALGORITHMS if isinstance(offered, list) and each in offered)
    if not algorithms:
        raise _unusable(f"it signs with none of {', '.join(ALGORITHMS)}")
    methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    posts = isinstance(methods, list) and "client_secret_basic" not in methods and "client_secret_post" in methods
    with_secret = "client_secret_post" if posts else "client_secret_basic"
    return _Metadata(**urls, algorithms=algorithms, auth_method=with_secret if has_secret else "none")


def _is_known(key: Mapping[str, Any]) -> bool:
    try:
        KeySet.import_key_set({"keys": [key]})  # type: ignore[list-item]
    except (JoseError, ValueError, TypeError, KeyError):
        return False
    return key.get("kty") != "oct"


def _unusable(why: str) -> Unavailable:
    return Unavailable(f"the OpenID provider cannot be used: {why}", public="the provider cannot be asked just now")


def oidc_client(
    issuer: str | None, client_id: str | None, client_secret: str | None, scopes: tuple[str, ...]
) -> OidcClient:
    """Return the registration that the settings describe. Raises InvalidInput with every fault."""
    faults = []
    parts = urlsplit(issuer or "")
    if parts.scheme not in {"https", "http"} or not parts.hostname or parts.query or parts.fragment:
        hint = "such as https://accounts.example.com, as its metadata spell it"
        faults.append(Fault(where=WHERE, message=f"{issuer!r} is not the URL of an issuer", hint=hint))
    if len(issuer or "") > 255:
        faults.append(Fault(where=WHERE, message="is longer than 255 characters"))
    if not client_id:
        hint = "register this server at the provider, with PUBLIC_URL/v1/oidc/callback as its redirect URI"
        faults.append(Fault(where="oidc_client_id", message="is not set", hint=hint))
    if "openid" not in scopes:
        faults.append(Fault(where="oidc_scopes", message="lack openid", hint="openid email profile"))
    if faults:
        raise InvalidInput(faults)
    return OidcClient(issuer=issuer or "", client_id=client_id or "", client_secret=client_secret, scopes=scopes)
