"""Signing in over a browser: at an OpenID provider, and for a device that has none (RFC 8628)."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints

from giornata.protocol.model import Label, Message, Reply
from giornata.protocol.project.admin import Scope
from giornata.protocol.project.secrets import Confidential

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
CLIENT_ID = "giornata"
DEVICE_KEY_TTL_S = 90 * 24 * 3600
MOST_DEVICE_KEY_TTL_S = 366 * 24 * 3600
SCOPE_WORDS = "|".join(sorted(set(Scope) - {Scope.NODE}))
UserCode = Annotated[str, StringConstraints(min_length=1, max_length=32)]


class OAuthRequest(Message):
    """A form in the terms of OAuth 2.0, whose servers ignore parameters that they do not know."""

    model_config = ConfigDict(extra="ignore")


class AuthorizeDevice(OAuthRequest):
    """`POST /v1/device/authorization`: a device asks for a person (RFC 8628, section 3.1)."""

    client_id: Label = CLIENT_ID
    scope: str = Field(
        Scope.MEMBER,
        max_length=128,
        description="Scopes of the key, with spaces between; no node.",
        json_schema_extra={"pattern": f"^({SCOPE_WORDS})( ({SCOPE_WORDS}))*$"},
    )
    host_name: Label = Field("unknown", description="Name of the device, which the person is shown.")
    project_id: str | None = Field(None, max_length=64, description="Default: the person chooses.")
    key_expires_in_s: int = Field(DEVICE_KEY_TTL_S, ge=60, le=MOST_DEVICE_KEY_TTL_S)


class DeviceAuthorization(Reply):
    """The codes of a device. The person types `user_code` at `verification_uri`."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires_in: int = Field(description="Seconds until the codes expire.")
    interval: int = Field(description="Minimum seconds between two polls.")


class TakeDeviceKey(OAuthRequest):
    """`POST /v1/device/token`: a device asks whether a person has approved (RFC 8628, section 3.4)."""

    grant_type: Literal["urn:ietf:params:oauth:grant-type:device_code"]
    device_code: Annotated[Confidential, Field(min_length=1, max_length=256)]
    client_id: Label = CLIENT_ID


class DeviceToken(Reply):
    """The key of a device. `access_token` is shown this once."""

    access_token: str
    token_type: str = "Bearer"  # noqa: S105 - a word of OAuth
    expires_in: int
    scope: str
    key_id: str
    project_id: str
    email: str = Field(description="Address of the person who approved.")


class DeviceRefusal(StrEnum):
    """The reason why a device has no key yet, or gets none (RFC 8628, section 3.5)."""

    AUTHORIZATION_PENDING = "authorization_pending"
    SLOW_DOWN = "slow_down"
    EXPIRED_TOKEN = "expired_token"  # noqa: S105 - a word of OAuth
    ACCESS_DENIED = "access_denied"
    INVALID_GRANT = "invalid_grant"


class OAuthErrorReply(Reply):
    """An error in OAuth's terms (RFC 6749, section 5.2)."""

    error: str
    error_description: str = ""


class FindDevice(Message):
    """`POST /v1/device/lookup`, and `/deny`: the code that a device shows."""

    user_code: UserCode


class ApproveDevice(FindDevice):
    """`POST /v1/device/approve`: the device gets a key of the person's."""

    project_id: str | None = Field(
        None,
        max_length=64,
        description="Project of the key, if the device asked for none. Default: the project of the session.",
    )


class DeviceRequest(Reply):
    """The sign-in that a device asks for. Approve it only if the device in front of you shows this code."""

    user_code: str
    scopes: tuple[Scope, ...] = Field(
        description="Scopes that the device asks for. Once approved: scopes that it got."
    )
    project_id: str | None = None
    host_name: str = Field(description="Name of the device, as the device says.")
    address: str = Field(description="Network address from which the device's request came.")
    key_expires_in_s: int
    created_at: datetime
    expires_at: datetime


class BeginSignIn(Message):
    """`POST /v1/oidc/authorizations`: begin to sign in at the OpenID provider."""

    return_to: str | None = Field(None, max_length=512, description="Path of this server to go to afterwards.")
    invitation: Annotated[Confidential, Field(min_length=1, max_length=256)] | None = Field(
        None, description="Secret of an invitation to join by."
    )
    link: bool = Field(False, description="Link the provider's account to the person of this session.")


class BegunSignIn(Reply):
    """The page of the provider that the browser has to go to. A cookie comes beside it."""

    authorization_url: str


class LinkedIdentity(Reply):
    """An account at an OpenID provider that signs its person in."""

    id: str
    issuer: str
    subject: str = Field(description="Name of the account at the provider.")
    linked_at: datetime
    signs_in: bool = Field(description="true: this server uses the provider now.")


class LinkedIdentities(Reply):
    """`GET /v1/me/identities`: the accounts at providers that are linked to the caller."""

    items: tuple[LinkedIdentity, ...]
    password: bool = Field(description="true: the person also has a password.")
