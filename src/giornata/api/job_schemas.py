"""What a job of each kind is asked to do, in the OpenAPI document.

The server takes the spec as an object and checks it by its kind, so that all faults come in one reply. The document
says what each kind takes: `kind` tells which schema holds, and specs of one's own kinds (`x-…`) stay free objects.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from giornata.protocol.specs import KINDS, OWN_KIND_PREFIX, TrainSpec

SCHEMAS = "#/components/schemas/"
OWN_KIND = rf"^{OWN_KIND_PREFIX}[a-z0-9-]{{0,{32 - len(OWN_KIND_PREFIX)}}}$"
_TRAIN = {
    "pretrained_model_name_or_path": "stabilityai/stable-diffusion-xl-base-1.0",
    "dataset": "ds_0123456789abcdef0123456789abcdef",
    "instance_prompt": "a photo of sks dog",
    "max_train_steps": 1000,
    "rank": 16,
}
EXAMPLES: Mapping[str, list[Any]] = {
    "SubmitTrainJob": [{"kind": "train", "name": "my-dog", "spec": _TRAIN, "labels": {"customer": "42"}}],
    "SubmitOwnJob": [{"kind": "x-count", "spec": {"steps": 5}}],
    "ContinueJob": [{"spec": {"max_train_steps": 500}, "name": "my-dog-2"}],
    "ChangeJob": [{"budget_micro_usd": 5_000_000}],
    "UploadRequest": [{"files": [{"sha256": "0" * 64, "size_bytes": 1_048_576, "name": "IMG_0001.jpg"}]}],
    "CreateDataset": [{"items": [{"sha256": "0" * 64, "name": "IMG_0001.jpg", "caption": "a photo of sks dog"}]}],
    "CreateKey": [{"scope": "member", "name": "laptop"}],
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


def add_job_schemas(schemas: dict[str, Any]) -> None:
    """Replace the free `SubmitJob` by one schema for each kind, and add the specs and the examples."""
    for spec in KINDS.values():
        _add(schemas, spec)
    submit = schemas["SubmitJob"]
    known = {kind: _of_kind(schemas, submit, kind, spec) for kind, spec in KINDS.items()}
    schemas["SubmitOwnJob"] = _variant(
        submit,
        title="SubmitOwnJob",
        kind={"type": "string", "pattern": OWN_KIND, "description": "A kind of your own."},
        spec={"type": "object", "additionalProperties": True, "description": "Handed to the workload as it is."},
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
    """Adds the schema of the request for a job of this kind; the reference to it."""
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
    """The same fields, none of which has to be given; what is left out is as in the job that is continued."""
    properties = {
        name: {key: value for key, value in field.items() if key != "default"}
        for name, field in spec["properties"].items()
        if name != "init_lora"
    }
    kept = {key: value for key, value in spec.items() if key not in {"required", "properties", "title"}}
    return {**kept, "title": "TrainSpecChanges", "properties": properties}
