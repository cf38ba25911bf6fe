"""The OpenAPI document: FastAPI's own, with the errors that are really sent."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from giornata.api.job_schemas import SCHEMAS, add_job_schemas
from giornata.api.problems import MEDIA_TYPE, Problem
from giornata.api.settings import ApiSettings

_ALWAYS = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.INTERNAL_SERVER_ERROR,
)


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may refuse with these statuses, and with those that every route may."""
    content = {MEDIA_TYPE: {"schema": {"$ref": f"{SCHEMAS}Problem"}}}
    return {
        int(status): {"description": HTTPStatus(status).phrase, "content": content}
        for status in sorted({*statuses, *_ALWAYS, HTTPStatus.SERVICE_UNAVAILABLE})
    }


USER = refusals(401, 403)
USER_ITEM = refusals(401, 403, 404)
USER_CHANGE = refusals(401, 403, 404, 409)
ATTEMPT = refusals(401, 404, 409)


def operation_id(route: APIRoute) -> str:
    """The name of the function that answers, such as `create_job`: no two routes have one name."""
    return route.name


def install_openapi(app: FastAPI, settings: ApiSettings) -> None:
    """Make `/openapi.json` say what is true of this app."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            servers = [{"url": settings.base_url or "/"}]
            schema = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes, servers=servers
            )
            app.openapi_schema = _corrected(schema)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _corrected(schema: dict[str, Any]) -> dict[str, Any]:
    for operations in schema["paths"].values():
        for operation in operations.values():
            _drop_invented_422(operation["responses"])
    schemas: dict[str, Any] = schema.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    problem = Problem.model_json_schema(ref_template=SCHEMAS + "{model}")
    schemas |= problem.pop("$defs", {})
    schemas["Problem"] = problem
    add_job_schemas(schemas)
    return schema


def _drop_invented_422(responses: dict[str, Mapping[str, Any]]) -> None:
    # FastAPI documents a 422 of its own for every route with input; here invalid input is a 400 problem.
    if MEDIA_TYPE not in responses.get("422", {}).get("content", {MEDIA_TYPE: None}):
        del responses["422"]
