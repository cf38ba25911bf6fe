"""Build the OpenAPI document: FastAPI's own, with the errors that are really sent and the schemas of jobs by kind."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel

from giornata.api.replies.problems import MEDIA_TYPE, Problem, QuotaProblem
from giornata.api.settings import ApiSettings
from giornata.protocol.specs import KINDS, OWN_KIND_PREFIX, TrainSpec

_ALWAYS = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.INTERNAL_SERVER_ERROR,
)
SCHEMAS = "#/components/schemas/"
OWN_KIND = rf"^{OWN_KIND_PREFIX}[a-z0-9-]{{0,{32 - len(OWN_KIND_PREFIX)}}}$"
_TRAIN = {
    "pretrained_model_name_or_path": "stabilityai/stable-diffusion-xl-base-1.0",
    "dataset": "ds_0123456789abcdef0123456789abcdef",
    "instance_prompt": "a photo of sks dog",
    "max_train_steps": 1000,
    "rank": 16,
}
_GENERATE = {
    "model": {"name": "stabilityai/stable-diffusion-xl-base-1.0"},
    "prompts": ["a red fox in the snow", "a blue hare"],
    "loras": [{"name": "job_0123456789abcdef0123456789", "weight": 0.8}],
    "seed": 7,
}
EXAMPLES: Mapping[str, list[Any]] = {
    "SubmitTrainJob": [{"kind": "train", "name": "my-dog", "spec": _TRAIN, "labels": {"customer": "42"}}],
    "SubmitOwnJob": [{"kind": "x-count", "spec": {"steps": 5}}],
    "SubmitGenerateJob": [{"kind": "generate", "spec": _GENERATE, "budget_micro_usd": 1_000_000}],
    "GenerationRequest": [{**_GENERATE, "num_images_per_prompt": 4, "name": "foxes"}],
    "ImageGenerationRequest": [
        {"model": "stabilityai/stable-diffusion-xl-base-1.0", "prompt": "a red fox", "n": 2, "size": "1024x1024"}
    ],
    "ContinueJob": [{"spec": {"max_train_steps": 500}, "name": "my-dog-2"}],
    "ChangeJob": [{"budget_micro_usd": 5_000_000}],
    "UploadRequest": [{"files": [{"sha256": "0" * 64, "size_bytes": 1_048_576, "name": "IMG_0001.jpg"}]}],
    "CreateDataset": [{"items": [{"sha256": "0" * 64, "name": "IMG_0001.jpg", "caption": "a photo of sks dog"}]}],
    "AddModel": [{"name": "watercolor", "reference": "urn:air:sdxl:lora:civitai:123@456"}],
    "CreateWebhook": [{"target": "https://example.org/hooks", "events": ["job.*", "checkpoint.committed"]}],
    "CreateKey": [{"scopes": ["jobs:read", "generate"], "name": "laptop", "expires_in_s": 2_592_000}],
    "CreateInvitation": [{"role": "member"}],
    "SignIn": [{"email": "ann@example.com", "password": "a long sentence of hers"}],
    "CreateProject": [{"id": "acme", "name": "Acme"}],
    "Problem": [
        {
            "type": "urn:giornata:problem:not-found",
            "title": "Not Found",
            "status": 404,
            "detail": "there is no job job_unknown",
            "code": "not-found",
            "retryable": False,
            "faults": [],
        }
    ],
}


def refusals(*statuses: int, counted: bool = True) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route that may refuse with these statuses, and with those that every route may.

    A route that authenticates its caller counts the request against quotas, unless `counted` is False: it may refuse
    with 429.
    """
    content = {MEDIA_TYPE: {"schema": {"$ref": f"{SCHEMAS}Problem"}}}
    may = {*statuses, *_ALWAYS, HTTPStatus.SERVICE_UNAVAILABLE}
    if counted and HTTPStatus.UNAUTHORIZED in may:
        may.add(HTTPStatus.TOO_MANY_REQUESTS)
    return {int(each): {"description": HTTPStatus(each).phrase, "content": content} for each in sorted(may)}


USER = refusals(401, 403)
USER_ITEM = refusals(401, 403, 404)
USER_CHANGE = refusals(401, 403, 404, 409)
ATTEMPT = refusals(401, 404, 409, counted=False)


def operation_id(route: APIRoute) -> str:
    """Return the name of the function that answers, such as `create_job`: no two routes have one name."""
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
    for each in (Problem, QuotaProblem):
        problem = each.model_json_schema(ref_template=SCHEMAS + "{model}")
        schemas |= problem.pop("$defs", {})
        schemas[each.__name__] = problem
    add_job_schemas(schemas)
    return schema


def _drop_invented_422(responses: dict[str, Mapping[str, Any]]) -> None:
    # FastAPI documents a 422 of its own for every route with input; here invalid input is a 400 problem.
    if MEDIA_TYPE not in responses.get("422", {}).get("content", {MEDIA_TYPE: None}):
        del responses["422"]


def add_job_schemas(schemas: dict[str, Any]) -> None:
    """Replace the free `SubmitJob` by one schema for each kind, and add the specs and the examples."""
    for spec in KINDS.values():
        _add(schemas, spec)
    submit = schemas["SubmitJob"]
    known = {kind: _of_kind(schemas, submit, kind, spec) for kind, spec in KINDS.items()}
    schemas["SubmitOwnJob"] = _variant(
        submit,
        title="SubmitOwnJob",
        kind={"type": "string", "pattern": OWN_KIND, "description": "Your own kind of job: x-NAME."},
        spec={
            "type": "object",
            "additionalProperties": True,
            "description": "Spec that your workload gets as it is.",
        },
        required=["kind", "spec"],
    )
    schemas["SubmitKnownJob"] = {
        "title": "SubmitKnownJob",
        "oneOf": [{"$ref": reference} for reference in known.values()],
        "discriminator": {"propertyName": "kind", "mapping": known},
    }
    schemas["SubmitJob"] = {
        "title": "SubmitJob",
        "description": submit.get("description", ""),
        "anyOf": [{"$ref": f"{SCHEMAS}SubmitKnownJob"}, {"$ref": f"{SCHEMAS}SubmitOwnJob"}],
    }
    schemas["TrainSpecChanges"] = _changes(schemas[TrainSpec.__name__])
    schemas["ContinueJob"]["properties"]["spec"] = {"$ref": f"{SCHEMAS}TrainSpecChanges"}
    for name, examples in EXAMPLES.items():
        schemas[name]["examples"] = examples


def _add(schemas: dict[str, Any], model: type[BaseModel]) -> None:
    schema = model.model_json_schema(ref_template=SCHEMAS + "{model}")
    found = {**schema.pop("$defs", {}), model.__name__: schema}
    clash = [name for name, one in found.items() if schemas.get(name, one) != one]
    assert not clash, f"two schemas have one name: {clash}"  # noqa: S101 - a mistake in the code, found by every test
    schemas |= found


def _of_kind(schemas: dict[str, Any], submit: Mapping[str, Any], kind: str, spec: type[BaseModel]) -> str:
    """Add the schema of the request for a job of this kind; return the reference to it."""
    name = f"Submit{kind.title()}Job"
    is_default = submit["properties"]["kind"].get("default") == kind
    schemas[name] = _variant(
        submit,
        title=name,
        kind={"type": "string", "const": kind, **({"default": kind} if is_default else {})},
        spec={"$ref": f"{SCHEMAS}{spec.__name__}"},
        required=["spec"] if is_default else ["kind", "spec"],
    )
    return f"{SCHEMAS}{name}"


def _variant(
    submit: Mapping[str, Any], *, title: str, kind: dict[str, Any], spec: dict[str, Any], required: list[str]
) -> dict[str, Any]:
    properties = {**submit["properties"], "kind": kind, "spec": spec}
    return {**submit, "title": title, "properties": properties, "required": required}


def _changes(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same fields, none of which has to be given; a field left out is as in the job that is continued."""
    properties = {
        name: {key: value for key, value in field.items() if key != "default"}
        for name, field in spec["properties"].items()
        if name != "init_lora"
    }
    kept = {key: value for key, value in spec.items() if key not in {"required", "properties", "title"}}
    return {**kept, "title": "TrainSpecChanges", "properties": properties}
