"""`/openapi.json`, and docs/reference/api.md held against it."""

import json
import re
from pathlib import Path

import pytest
from tests.contract.http.test_client_flow import bitmap
from tests.fixtures.served import Served

from giornata.api.replies.problems import CODE_OF_STATUS, Problem
from giornata.control.jobs.submission.spec_faults import parse_spec
from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import Reason
from giornata.domain.machines.health import MachineState
from giornata.protocol.account.people import CreateInvitation, SignIn
from giornata.protocol.events import EventType
from giornata.protocol.jobs import ChangeJob, ContinueJob, SubmitJob
from giornata.protocol.models import AddModel
from giornata.protocol.orders.openai_images import ImageGenerationRequest
from giornata.protocol.orders.order_pictures import GenerationRequest
from giornata.protocol.project.admin import CreateKey, CreateProject
from giornata.protocol.project.webhook_endpoints import CreateWebhook
from giornata.protocol.specs import KINDS, TrainSpec
from giornata.protocol.uploads import CreateDataset, UploadRequest
from giornata.web.error_status import STATUS

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "api.md").read_text()

# Everything that the ancestor's API had: routes, parameters, columns, statuses, events.
ANCESTOR = """
POST /job;GET /jobs;GET /job/:id;POST /job/:id/stop;GET /job/:id/events;GET /work;GET /work/peek;POST /heartbeat/:id;
POST /progress;POST /complete;POST /fail;GET /upload/token;GET /download/token;mpu-create;mpu-complete;mpu-abort;
PUT /upload/;action=delete;GET /download/:bucket/:key;
instance_prompt;instance_data_prefix;class_prompt;class_data_prefix;validation_prompt;max_train_steps;train_batch_size;
learning_rate;text_encoder_lr;train_text_encoder;gradient_accumulation_steps;resolution;mixed_precision;use_8bit_adam;
gradient_checkpointing;lr_scheduler;lr_warmup_steps;with_prior_preservation;prior_loss_weight;num_class_images;
sample_batch_size;validation_epochs;checkpointing_steps;num_train_epochs;center_crop;random_flip;
completed_at;canceled_at;failed_at;last_heartbeat;num_failures;resume_from;checkpoint_bucket;checkpoint_prefix;
model_bucket;model_key;data_bucket;`pending`;`running`;`complete`;`failed`;`canceled`;`created`;`started`;`heartbeat`
"""


@pytest.fixture(scope="module")
def document(standing: Served) -> dict[str, dict[str, dict[str, dict[str, object]]]]:
    return dict(standing.http.get(f"{standing.url}/openapi.json").json())


def test_openapi_document_is_version_3_1(document: dict[str, object]) -> None:
    assert str(document["openapi"]).startswith("3.1.")


def test_every_reference_leads_somewhere(document: dict[str, object]) -> None:
    text = json.dumps(document)
    wanted = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert wanted - set(document["components"]["schemas"]) == set()  # type: ignore[index, call-overload]
    assert "HTTPValidationError" not in text


def test_every_refusal_is_a_problem(document: dict[str, object]) -> None:
    for path, operations in document["paths"].items():  # type: ignore[attr-defined]
        for operation in operations.values():
            for status, response in operation["responses"].items():
                if int(status) >= 400 and path == "/v1/images/generations":
                    schema = response["content"]["application/json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/ImageErrorReply"}, status
                elif status == "400" and path in {"/v1/device/authorization", "/v1/device/token"}:
                    assert list(response["content"]) == ["application/problem+json", "application/json"], path
                elif int(status) >= 400 and path != "/readyz":
                    assert list(response["content"]) == ["application/problem+json"], (path, status)


# They sign in: with a password, with a secret of their own, or elsewhere.
OPENS_A_DOOR = {"open_session", "accept", "begin_sign_in", "authorize_device", "take_device_key"}


def test_every_route_under_v1_takes_a_key_or_a_token(document: dict[str, object]) -> None:
    for path, operations in document["paths"].items():  # type: ignore[attr-defined]
        for operation in operations.values():
            guarded = path.startswith("/v1/") and not path.startswith("/v1/blobs/")
            guarded = guarded and operation["operationId"] not in OPENS_A_DOOR
            assert bool(operation.get("security")) == guarded, path


def test_the_page_has_every_route(document: dict[str, object]) -> None:
    routes = {
        f"{method.upper()} {path}"
        for path, operations in document["paths"].items()  # type: ignore[attr-defined]
        for method in operations
    }
    assert {route for route in routes if f"`{route}`" not in PAGE} == set()
    named = set(re.findall(r"`((?:GET|POST|PUT|PATCH|DELETE) /(?:v1|healthz|readyz|metrics)[^`?]*)[`?]", PAGE))
    assert named - routes == set(), "the page names routes that there are not"


def test_the_page_has_every_code_state_and_event() -> None:
    codes = {kind.code for kind in STATUS} | set(CODE_OF_STATUS.values())
    for name in [*codes, *map(str, JobState), *map(str, EventType)]:
        assert f"`{name}`" in PAGE, name


def test_the_page_has_every_metric(standing: Served) -> None:
    text = standing.call("GET", "/metrics", None).text
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    families = {name for name in names if name.startswith("giornata_") and not name.endswith("_created")}
    assert len(families) >= 5
    assert {name for name in families if f"`{name}`" not in PAGE} == set()


def test_the_page_maps_all_of_the_ancestor() -> None:
    section = PAGE[PAGE.index("## Coming from") :]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")]
    left = "\n".join(rows)
    missing = [name.strip() for name in ANCESTOR.split(";") if name.strip() not in left]
    assert missing == []


def test_the_page_maps_to_fields_that_there_are() -> None:
    named = set(re.findall(r"`spec\.(\w+)`", PAGE))
    assert named - set(TrainSpec.model_fields) == set()
    assert len(named) > 20


def test_the_page_shows_code_that_runs(served: Served, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    for number in range(3):
        (tmp_path / "pictures" / f"{number}.bmp").write_bytes(bitmap(number))
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    for shown, real in (
        ("http://127.0.0.1:8470", served.url),
        ("gk_…", served.keys.member),
        ('Path("pictures")', f"Path({str(tmp_path / 'pictures')!r})"),
    ):
        assert shown in code
        code = code.replace(shown, real)
    scope: dict[str, object] = {}
    exec(compile(code, "docs/reference/api.md", "exec"), scope)  # noqa: S102
    (job,) = served.client().jobs()
    assert (job.name, job.labels) == ("timber", {"customer": "42"})


def operations(document: dict[str, object]) -> list[dict[str, object]]:
    return [operation for path in document["paths"].values() for operation in path.values()]  # type: ignore[attr-defined]


def test_operations_have_short_names_of_their_own(document: dict[str, object]) -> None:
    names = [str(operation["operationId"]) for operation in operations(document)]
    assert len(set(names)) == len(names)
    assert {"create_job", "list_jobs", "cancel_job", "claim_job", "heartbeat"} <= set(names)
    assert [name for name in names if re.fullmatch(r"[a-z]+(_[a-z]+){0,3}", name) is None] == []


def test_openapi_servers_entry_is_root_url(document: dict[str, object]) -> None:
    assert document["servers"] == [{"url": "/"}]


def test_each_kind_of_job_has_the_schema_of_its_spec(document: dict[str, object]) -> None:
    schemas = document["components"]["schemas"]  # type: ignore[index, call-overload]
    for kind, spec in KINDS.items():
        reference = schemas["SubmitKnownJob"]["discriminator"]["mapping"][kind]
        request = schemas[reference.rpartition("/")[2]]
        assert request["properties"]["kind"]["const"] == kind
        assert request["properties"]["spec"] == {"$ref": f"#/components/schemas/{spec.__name__}"}
        assert set(schemas[spec.__name__]["properties"]) == set(spec.model_fields)
    assert schemas["SubmitOwnJob"]["properties"]["spec"]["additionalProperties"] is True
    assert re.fullmatch(schemas["SubmitOwnJob"]["properties"]["kind"]["pattern"], "x-" + "a" * 30)
    assert "required" not in schemas["TrainSpecChanges"]


def test_openapi_examples_validate_against_their_models(document: dict[str, object]) -> None:
    schemas = document["components"]["schemas"]  # type: ignore[index, call-overload]
    models = {
        "SubmitTrainJob": SubmitJob,
        "SubmitGenerateJob": SubmitJob,
        "SubmitOwnJob": SubmitJob,
        **{model.__name__: model for model in (ContinueJob, ChangeJob, UploadRequest, CreateDataset, CreateKey)},
        "AddModel": AddModel,
        **{model.__name__: model for model in (GenerationRequest, ImageGenerationRequest)},
        **{model.__name__: model for model in (CreateProject, CreateInvitation, CreateWebhook, SignIn)},
        "Problem": Problem,
    }
    assert {name for name, schema in schemas.items() if "examples" in schema} == set(models)
    for name, model in models.items():
        for example in schemas[name]["examples"]:
            parsed = model.model_validate(example)
            if isinstance(parsed, SubmitJob):
                assert parse_spec(parsed.kind, parsed.spec, as_written=True)[1] == []


def test_states_reasons_and_events_are_enums(document: dict[str, object]) -> None:
    schemas = document["components"]["schemas"]  # type: ignore[index, call-overload]
    assert schemas["JobState"]["enum"] == list(map(str, JobState))
    assert schemas["Reason"]["enum"] == list(map(str, Reason))
    assert schemas["Event"]["properties"]["type"]["enum"] == list(map(str, EventType))
    assert schemas["AttemptEnded"]["properties"]["job_state"]["enum"] == list(map(str, JobState))
    assert schemas["Machine"]["properties"]["state"]["enum"] == list(map(str, MachineState))
    parameters = document["paths"]["/v1/jobs"]["get"]["parameters"]  # type: ignore[index, call-overload]
    (state,) = (each for each in parameters if each["name"] == "state")
    assert state["schema"]["anyOf"][0]["items"]["enum"] == list(map(str, JobState))
