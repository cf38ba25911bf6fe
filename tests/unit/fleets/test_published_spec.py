"""The fake is held to what the provider publishes; and what holds it notices."""

import json
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from tests.fixtures.published_mock import PublishedMock
from tests.fixtures.published_spec import (
    NoSpec,
    PublishedSpec,
    SpecViolation,
    accepts,
    published_spec,
    read_spec,
    spec_file,
)
from tests.fixtures.salad_cloud import API_KEY, PREFIX, SPEC, SaladCloud
from tests.fixtures.salad_imds import SPEC as IMDS_SPEC
from tests.fixtures.salad_rented import SOME, Rented

from giornata.cli.settings import Settings
from giornata.cli.settings.settings import OLD_NAMES
from giornata.fleets.salad import SaladOptions

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy" / "salad"
KEYED = {"Salad-Api-Key": API_KEY}
PATCH = {"Content-Type": "application/merge-patch+json"}
JSON_ONLY = {"Accept": "application/json"}
GROUPS = f"{PREFIX}/organizations/acme/projects/loras/containers"


@pytest.fixture
def spec() -> PublishedSpec:
    path = spec_file(SPEC)
    if path is None:
        pytest.skip(f"{SPEC} is not at hand: the fake SaladCloud is NOT checked against it")
    return PublishedSpec(read_spec(path), prefix=PREFIX)


@pytest.mark.parametrize("name", [SPEC, IMDS_SPEC])
def test_the_documents_are_at_hand(name):
    if spec_file(name) is None:
        pytest.skip(f"{name} is not at hand: the fake SaladCloud is NOT checked against it")
    assert not isinstance(published_spec(name), NoSpec)


def test_missing_openapi_document_skips_checks_with_warning():
    with pytest.warns(UserWarning, match="NOT checked"):
        nothing = published_spec("there-is-none.openapi.yaml")
    assert isinstance(nothing, NoSpec)
    nothing.request(httpx.Request("BREW", "http://x/coffee"))


def test_norway_is_no_falsehood(tmp_path):
    document = tmp_path / "spec.yaml"
    document.write_text("codes: [no, on, y, false]\n")
    assert read_spec(document)["codes"] == ["no", "on", "y", False]


def test_norway_is_a_country_of_the_published_document(spec):
    spec.schema("CountryCode", "no")
    with pytest.raises(SpecViolation):
        spec.schema("CountryCode", "nowhere")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "Bad Name"},
        {"replicas": 501},
        {"container": {"image": "x", "resources": {"cpu": 0, "memory": 1024}}},
        {"container": {"image": "x", "resources": {"cpu": 1, "memory": 1024}, "environment_variables": {"A": ""}}},
    ],
)
def test_a_wrong_request_is_noticed(spec, body):
    good = json.loads((DEPLOY / "group.json").read_text())
    spec.request(httpx.Request("POST", f"http://x{GROUPS}", json=good, headers=KEYED))
    wrong = good | body if body else {}
    with pytest.raises(SpecViolation):
        spec.request(httpx.Request("POST", f"http://x{GROUPS}", json=wrong, headers=KEYED))


@pytest.mark.parametrize(
    ("method", "path", "headers", "more", "status"),
    [
        ("GET", "/nothing", KEYED, {}, 404),
        ("DELETE", "", KEYED, {}, 404),
        ("GET", "", {}, {}, 401),
        ("PATCH", "/loras", KEYED, {"json": {"replicas": 1}}, 415),
        ("PATCH", "/loras", KEYED | PATCH, {"content": b'{"replicas": 501}'}, 422),
        ("PATCH", "/loras", KEYED | PATCH | JSON_ONLY, {"content": b'{"replicas": 1}'}, 406),
        ("POST", "/loras/start", KEYED, {"json": {}}, 422),
        ("GET", "/LORAS", KEYED, {}, 422),
    ],
    ids=["no route", "no method", "no key", "content type", "too many replicas", "accept", "a body", "a parameter"],
)
def test_a_request_that_is_not_published_is_noticed(spec, method, path, headers, more, status):
    base = GROUPS if path != "/nothing" else PREFIX
    request = httpx.Request(method, f"http://x{base}{path}", headers=headers, **more)
    with pytest.raises(SpecViolation) as caught:
        spec.request(request)
    assert caught.value.status == status
    assert PublishedMock(spec, Random(0)).answer(request).status_code == status


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        (None, True),
        ("*/*", True),
        ("application/*;q=0.5", True),
        ("text/html, application/merge-patch+json", True),
        ("application/json", False),
        ("text/*", False),
    ],
)
def test_accept_header_of_request_is_matched_against_media_type(said, taken):
    headers = {} if said is None else {"Accept": said}
    assert accepts(httpx.Request("PATCH", "http://x/y", headers=headers), "application/merge-patch+json") is taken


def test_the_fake_answers_406_where_its_reply_is_not_accepted():
    cloud = SaladCloud(_spec=NoSpec())
    rented = Rented(cloud)
    rented.fleet().desired(1)
    url = f"http://x{GROUPS}/loras"
    request = httpx.Request("PATCH", url, headers=KEYED | PATCH | JSON_ONLY, content=b'{"replicas": 2}')
    assert cloud.answer(request).status_code == 406


def test_a_wrong_answer_is_noticed(spec):
    request = httpx.Request("GET", f"http://x{GROUPS}/loras/instances")
    spec.response(request, httpx.Response(200, json={"instances": []}))
    for wrong in (
        httpx.Response(200, json={"instances": [{"id": "x"}]}),
        httpx.Response(200, json=[]),
        httpx.Response(200, html="<p>"),
        httpx.Response(204),
    ):
        with pytest.raises(SpecViolation):
            spec.response(request, wrong)


def test_the_group_definition_is_one_that_the_provider_takes(spec):
    group = json.loads((DEPLOY / "group.json").read_text())
    spec.request(httpx.Request("POST", f"http://x{GROUPS}", json=group, headers=KEYED))


def test_the_group_definition_is_what_the_driver_makes_of_the_options():
    group = json.loads((DEPLOY / "group.json").read_text())
    options: dict[str, Any] = json.loads((DEPLOY / "options.json").read_text())
    rented = Rented(SaladCloud(organization=options["organization"], project=options["project"]))
    rented.fleet(**(dict.fromkeys(SOME) | options)).desired(1)
    made = next(body for body in rented.cloud.bodies if body and "container" in body)
    assert group | {"replicas": 1, "autostart_policy": True} == made
    assert set(options) <= set(SaladOptions.model_fields)


def test_every_variable_of_the_group_definition_is_a_setting():
    group = json.loads((DEPLOY / "group.json").read_text())
    own = [name for name in group["container"]["environment_variables"] if name.startswith("GIORNATA_")]
    assert own
    assert {name.removeprefix("GIORNATA_").lower() for name in own} <= {*Settings.model_fields, *OLD_NAMES}


def test_the_fake_refuses_what_the_provider_would():
    cloud = SaladCloud()
    url = f"http://x{GROUPS}/loras/start"
    headers = KEYED
    assert cloud.answer(httpx.Request("POST", url, headers=headers)).status_code == 400
    assert cloud.answer(httpx.Request("POST", url, headers={"Salad-Api-Key": "another"})).status_code == 403
    cloud.per_minute = 2
    limited = cloud.answer(httpx.Request("POST", url, headers=headers))
    assert (limited.status_code, limited.headers["retry-after"]) == (429, "7")
    cloud.advance(61)
    assert cloud.answer(httpx.Request("POST", url, headers=headers)).status_code == 400


def test_options_say_their_bounds_in_the_guide():
    guide = (ROOT / "docs" / "how-to" / "providers" / "salad.md").read_text()
    missing = [name for name in SaladOptions.model_fields if f"`{name}`" not in guide]
    assert missing == []
