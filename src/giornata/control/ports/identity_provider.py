"""The interface of an OpenID provider, at which people of an organization have accounts."""

from dataclasses import dataclass, field
from typing import Protocol

from giornata.domain.errors import NotFound

NO_PROVIDER = "this installation has no OpenID provider; sign in with a password"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRequest:
    """One sign-in at the provider. `state` and `nonce` come back, and the provider sees only a hash of
    `code_verifier` (RFC 7636) before it has to give a token.
    """

    state: str
    nonce: str
    code_verifier: str = field(repr=False)
    redirect_uri: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderIdentity:
    """The account of a person at a provider, as its ID token says. Groups and roles are left out on purpose."""

    issuer: str
    subject: str
    email: str | None
    email_verified: bool
    name: str | None


class IdentityProvider(Protocol):
    """Signs people in with the authorization code flow. The calls go over the network: they are for a thread."""

    issuer: str
    name: str
    """The word on the button that leads there."""

    def authorization_url(self, request: AuthorizationRequest) -> str:
        """Return the page of the provider that the browser is sent to. Raises Unavailable."""

    def identity(self, request: AuthorizationRequest, code: str, *, at_ms: int) -> ProviderIdentity:
        """Exchange the code, and check the ID token: who issued it, for whom, until when, for which request.

        Raises Unauthenticated for a code or a token that is not good, and Unavailable when the provider does not
        answer.
        """


class NoIdentityProvider:
    """Stands for the provider where the installation has none."""

    issuer = ""
    name = ""

    def authorization_url(self, request: AuthorizationRequest) -> str:
        """Raises NotFound because this installation has no provider."""
        del request
        raise NotFound(NO_PROVIDER)

    def identity(self, request: AuthorizationRequest, code: str, *, at_ms: int) -> ProviderIdentity:
        """Raises NotFound because this installation has no provider."""
        del request, code, at_ms
        raise NotFound(NO_PROVIDER)
