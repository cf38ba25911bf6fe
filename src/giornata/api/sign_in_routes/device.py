"""Routes with which a device without a browser signs in (RFC 8628), and with which a person approves it.

The device's two routes speak OAuth: forms, and OAuth's errors. The person's routes speak JSON.
"""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel

from giornata.api.replies.openapi import refusals
from giornata.api.replies.problems import input_faults
from giornata.api.requests.callers import Ctx, User
from giornata.api.requests.forms import FORM, form_fields, message_of
from giornata.control.access.signing_in import device_sign_in
from giornata.domain.errors import InvalidInput
from giornata.protocol.account.sign_in import (
    ApproveDevice,
    AuthorizeDevice,
    DeviceAuthorization,
    DeviceRefusal,
    DeviceRequest,
    DeviceToken,
    FindDevice,
    OAuthErrorReply,
    TakeDeviceKey,
)
from giornata.protocol.strict_json import Json
from giornata.web.addresses import DEVICE_PATH, page_url
from giornata.web.visitors import visitor_of

DEVICE = refusals(401, 403, 404, 409, 429)
DESCRIPTIONS = {
    DeviceRefusal.AUTHORIZATION_PENDING: "nobody has approved this sign-in yet",
    DeviceRefusal.SLOW_DOWN: "polls come too fast; wait five seconds longer from now on",
    DeviceRefusal.EXPIRED_TOKEN: "the code has expired; begin again",
    DeviceRefusal.ACCESS_DENIED: "the sign-in was denied",
    DeviceRefusal.INVALID_GRANT: "this device code is unknown or was used",
}


class OAuthRoute(APIRoute):
    """A route that answers invalid input with an error of OAuth (RFC 6749, section 5.2)."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with its refusals turned into replies."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                return _refused("invalid_request", str(InvalidInput(input_faults(request, error))))
            except InvalidInput as error:
                return _refused(_word(error), str(error))

        return handled


router = APIRouter(prefix="/v1", tags=["people"])
oauth = APIRouter(prefix="/v1/device", tags=["people"], route_class=OAuthRoute)


def _form_of(model: type[BaseModel]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {FORM: {"schema": model.model_json_schema()}}}}


def _responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route of OAuth. What is refused before the route is a problem, as everywhere."""
    known = refusals(*statuses)
    oauth = {"schema": OAuthErrorReply.model_json_schema()}
    known[400] = {**known[400], "content": {**known[400]["content"], "application/json": oauth}}
    return known


@oauth.post("/authorization", responses=_responses(429), openapi_extra=_form_of(AuthorizeDevice))
async def authorize_device(request: Request, ctx: Ctx) -> DeviceAuthorization:
    """Begin the sign-in of a device, which shows `user_code` and the address to its person."""
    # The body is read here and not by a dependency: a query that is wrong is told before it.
    asked = message_of(AuthorizeDevice, await form_fields(request))
    url = page_url(request, DEVICE_PATH)
    begin = partial(device_sign_in.begin_device, ctx, asked, visitor_of(request), page_url=url)
    return await anyio.to_thread.run_sync(begin)


@oauth.post("/token", responses=_responses(), openapi_extra=_form_of(TakeDeviceKey), response_model=DeviceToken)
async def take_device_key(request: Request, ctx: Ctx) -> DeviceToken | JSONResponse:
    """Return the device's key once a person has approved. Until then the error is `authorization_pending`."""
    asked = message_of(TakeDeviceKey, await form_fields(request))
    device_code = asked.device_code.get_secret_value()
    taken = await anyio.to_thread.run_sync(device_sign_in.take_device_key, ctx, device_code, visitor_of(request))
    if isinstance(taken, DeviceRefusal):
        return _refused(taken, DESCRIPTIONS[taken])
    return taken


@router.post("/device/lookup", responses=DEVICE)
def find_device(request: Request, ctx: Ctx, caller: User, body: Json[FindDevice]) -> DeviceRequest:
    """Return what the device with this code asks for."""
    return device_sign_in.find_device(ctx, caller, body, visitor_of(request))


@router.post("/device/approve", responses=DEVICE)
def approve_device(request: Request, ctx: Ctx, caller: User, body: Json[ApproveDevice]) -> DeviceRequest:
    """Approve a device: it gets a key with no more scopes than you have. The reply lists them."""
    return device_sign_in.approve_device(ctx, caller, body, visitor_of(request))


@router.post("/device/deny", responses=DEVICE)
def deny_device(request: Request, ctx: Ctx, caller: User, body: Json[FindDevice]) -> DeviceRequest:
    """Deny a device: it gets no key."""
    return device_sign_in.deny_device(ctx, caller, body, visitor_of(request))


def _refused(error: str, description: str) -> JSONResponse:
    said = OAuthErrorReply(error=error, error_description=description)
    return JSONResponse(said.model_dump(), 400)


def _word(error: InvalidInput) -> str:
    where = {fault.where for fault in error.faults}
    if where == {"scope"}:
        return "invalid_scope"
    wrong_grant = where == {"grant_type"} and not any("required" in fault.message for fault in error.faults)
    return "unsupported_grant_type" if wrong_grant else "invalid_request"
