"""Sign in from a program without a browser (RFC 8628): a person approves it in a browser anywhere."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import httpx
from pydantic import ValidationError

from giornata.client.problems import error_of
from giornata.client.retry import Monotonic
from giornata.client.trust import trusted
from giornata.domain.errors import (
    Fault,
    Forbidden,
    GiornataError,
    InvalidInput,
    Unauthenticated,
    Unavailable,
    Unreachable,
)
from giornata.protocol.account.sign_in import (
    DEVICE_GRANT,
    AuthorizeDevice,
    DeviceAuthorization,
    DeviceRefusal,
    DeviceToken,
    OAuthErrorReply,
)
from giornata.protocol.model import Reply

TIMEOUT = httpx.Timeout(30.0, connect=5.0)
SLOWER_BY_S = 5.0  # RFC 8628, section 3.5
LONGEST_INTERVAL_S = 60.0
AUTHORIZE, TOKEN = "/v1/device/authorization", "/v1/device/token"
R = TypeVar("R", bound=Reply)
BEGIN_AGAIN = "Begin again with: giornata login URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSignIn:
    """The two calls of a device to one server. Tests give another `sleep` and `monotonic_s`, and need not wait."""

    url: str
    sleep: Callable[[float], None] = time.sleep
    monotonic_s: Monotonic = field(default=time.monotonic)

    def begin(self, request: AuthorizeDevice) -> DeviceAuthorization:
        """Return the code to show. Raises InvalidInput, Unavailable, and NotFound for a server without sign-ins."""
        fields = request.model_dump(mode="json", exclude_none=True)
        response = self._sent(AUTHORIZE, {name: str(value) for name, value in fields.items()})
        if not response.is_success:
            raise _error(response)
        return _read(response, DeviceAuthorization)

    def wait(self, begun: DeviceAuthorization) -> DeviceToken:
        """Poll until a person has decided. Raises Forbidden when the person denied it, and Unauthenticated when
        nobody did anything in time.
        """
        interval_s, ends_s = float(begun.interval), self.monotonic_s() + begun.expires_in
        fields = {"grant_type": DEVICE_GRANT, "device_code": begun.device_code, "client_id": "giornata"}
        while self.monotonic_s() < ends_s:
            self.sleep(interval_s)
            try:
                response = self._sent(TOKEN, fields)
            except Unreachable:  # the key is only lost if the answer with it was
                interval_s = min(interval_s * 2, LONGEST_INTERVAL_S)
                continue
            if response.is_success:
                return _read(response, DeviceToken)
            refusal = _refusal(response)
            if refusal is None and not (error := _error(response)).retryable:
                raise error
            if refusal is DeviceRefusal.ACCESS_DENIED:
                raise Forbidden("the sign-in was denied")
            if refusal is DeviceRefusal.INVALID_GRANT:
                raise Unauthenticated("this sign-in was used already, or is forgotten", hint=BEGIN_AGAIN)
            if refusal is DeviceRefusal.EXPIRED_TOKEN:
                break
            if refusal is not DeviceRefusal.AUTHORIZATION_PENDING:
                interval_s = min(interval_s + SLOWER_BY_S, LONGEST_INTERVAL_S)
        raise Unauthenticated("nobody approved this sign-in in time", hint=BEGIN_AGAIN)

    def _sent(self, path: str, fields: dict[str, str]) -> httpx.Response:
        try:
            with httpx.Client(verify=trusted(), timeout=TIMEOUT) as http:
                return http.post(self.url.rstrip("/") + path, data=fields, headers={"Accept": "application/json"})
        except httpx.RequestError as error:
            raise Unreachable(f"{self.url} does not answer ({type(error).__name__}: {error})") from error


def _refusal(response: httpx.Response) -> DeviceRefusal | None:
    """Return the device's state as OAuth says it; None for an answer that is about something else."""
    try:
        return DeviceRefusal(OAuthErrorReply.model_validate_json(response.content).error)
    except (ValidationError, ValueError):
        return None


def _error(response: httpx.Response) -> GiornataError:
    try:
        said = OAuthErrorReply.model_validate_json(response.content)
    except ValidationError:
        return error_of(response)
    return InvalidInput([Fault(where=said.error, message=said.error_description or "was refused")])


def _read(response: httpx.Response, reply: type[R]) -> R:
    try:
        return reply.model_validate_json(response.content)
    except ValidationError as error:
        raise Unavailable(f"{response.url.path}: the reply is not from a Giornata server: {error}") from error
