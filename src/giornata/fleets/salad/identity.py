"""Reads the tokens that SaladCloud gives to its containers, so that nodes there need carry no key.

A token is a JSON Web Token that lives for five minutes, signed with one of the provider's published keys. Its claims:
`aud` the organization's id, `salad_machine_id`, `salad_workload_id` and `_name` (the container group), `exp`, `nbf`.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import jwt

from giornata.control.ports.identities import WorkloadIdentity
from giornata.domain.errors import Unauthenticated, Unavailable
from giornata.fleets.salad.container_groups import group_number

# Signatures that need the provider's secret. With HS256 its public key would do.
ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
LEEWAY_S = 10
LONGEST_LIFE_S = 3600  # of a token, so that one that was signed for ever is not remembered for ever
KEYS_KEPT_MS = 3_600_000
ASK_AGAIN_AFTER_MS = 60_000
TIMEOUT = httpx.Timeout(10.0, connect=5.0)
REFUSAL = "this token is not good here"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaladGroup:
    """The organization and the group whose tokens are taken, and the fleet. None: any.

    `group` is the name of the fleet's first container group; further groups of the fleet have its name and a number.
    """

    fleet: str
    organization_id: str | None
    group: str
    group_id: str | None = None
    issuer: str | None = None
    keys_url: str


@dataclass(slots=True, kw_only=True)
class KeySet:
    """The provider's public keys, by their ids. They are replaced every two weeks. Thread-safe.

    Kept for an hour. A key that is not among them is looked for at once, but once a minute at most, whoever asks for
    whatever; and while they cannot be had those that are known stay good.
    """

    http: httpx.Client
    url: str
    now_ms: Callable[[], int]
    _keys: Mapping[str, jwt.PyJWK] = field(default_factory=dict)
    _fetched_ms: int | None = None
    _asked_ms: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def key(self, key_id: str) -> jwt.PyJWK:
        """The key of that id. Raises Unauthenticated when there is none, Unavailable when nobody can say."""
        known = self._keys.get(key_id)
        if known is not None and self._is_fresh():
            return known
        with self._lock:
            known = self._keys.get(key_id)
            if known is not None and self._is_fresh():
                return known
            current = self._may_ask() and self._fetched()
            known = self._keys.get(key_id)
        if known is not None:
            return known
        if not current:
            raise Unavailable("the provider's keys cannot be fetched now; try again in a minute")
        raise Unauthenticated(REFUSAL)

    def _is_fresh(self) -> bool:
        return self._fetched_ms is not None and 0 <= self.now_ms() - self._fetched_ms < KEYS_KEPT_MS

    def _may_ask(self) -> bool:
        return self._asked_ms is None or not 0 <= self.now_ms() - self._asked_ms < ASK_AGAIN_AFTER_MS

    def _fetched(self) -> bool:
        now_ms = self._asked_ms = self.now_ms()
        try:
            response = self.http.get(self.url, timeout=TIMEOUT, headers={"Accept": "application/json"})
            rows = response.raise_for_status().json()["keys"]
            keys = {row["kid"]: key for row in rows if (key := _readable(row)) is not None}
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return False
        if keys:
            self._keys, self._fetched_ms = keys, now_ms
        return bool(keys)


def _readable(row: dict[str, Any]) -> jwt.PyJWK | None:
    """Return the key; None for an unusable one, since other keys beside it may be good."""
    try:
        key = jwt.PyJWK.from_dict(row)
    except jwt.PyJWTError:
        return None
    return key if key.algorithm_name in ALGORITHMS and row.get("use", "sig") == "sig" and row.get("kid") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaladIdentities:
    """Workloads of these groups. `keys` by their URL; `now_ms` is the server's clock."""

    groups: Sequence[SaladGroup]
    keys: Mapping[str, KeySet]
    now_ms: Callable[[], int]

    def recognize(self, token: str) -> WorkloadIdentity:
        """Verify a token, and return the workload that the token identifies; see WorkloadIdentities."""
        claimed = self._group_of(_unverified(token))
        key = self.keys[claimed.keys_url].key(_key_id(token))
        claims = self._verified(token, key, claimed)
        machine_id, expires_s = claims["salad_machine_id"], int(claims["exp"])
        if not isinstance(machine_id, str) or not machine_id or claims["sub"] != machine_id:
            raise Unauthenticated(REFUSAL)
        now_ms = self.now_ms()
        until_ms = min(expires_s * 1000, now_ms + LONGEST_LIFE_S * 1000)
        return WorkloadIdentity(fleet=claimed.fleet, machine_id=machine_id, expires_at_ms=until_ms)

    def _group_of(self, claims: Mapping[str, Any]) -> SaladGroup:
        """Return the group that the token claims, without any request, so that a stranger's token costs nothing."""
        for group in self.groups:
            if _is_of(claims, group):
                return group
        raise Unauthenticated(REFUSAL)

    def _verified(self, token: str, key: jwt.PyJWK, group: SaladGroup) -> Mapping[str, Any]:
        try:
            claims = jwt.decode(
                token,
                key=key,
                algorithms=[key.algorithm_name],
                audience=group.organization_id,
                issuer=group.issuer,
                # Times are judged below, by the server's clock.
                options={
                    "require": ["exp", "aud", "sub", "salad_machine_id", "salad_workload_name"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
            now_s = self.now_ms() / 1000
            good = int(claims["exp"]) > now_s - LEEWAY_S and int(claims.get("nbf", 0)) <= now_s + LEEWAY_S
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
            raise Unauthenticated(REFUSAL) from None
        if not good or not _is_of(claims, group):
            raise Unauthenticated(REFUSAL)
        return claims


def _is_of(claims: Mapping[str, Any], group: SaladGroup) -> bool:
    audience = claims.get("aud")
    return (
        group.organization_id in (audience if isinstance(audience, list) else [audience])
        and group_number(group.group, claims.get("salad_workload_name")) is not None
        and group.group_id in (None, claims.get("salad_workload_id"))
    )


def _unverified(token: str) -> Mapping[str, Any]:
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise Unauthenticated(REFUSAL) from None
    return claims


def _key_id(token: str) -> str:
    try:
        key_id = jwt.get_unverified_header(token).get("kid")
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise Unauthenticated(REFUSAL) from None
    if not isinstance(key_id, str):
        raise Unauthenticated(REFUSAL)
    return key_id
