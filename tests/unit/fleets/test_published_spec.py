"""The fake is held to what the provider publishes; and what holds it notices."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fixtures.published_spec import Checked, NoSpec, PublishedSpec, published_spec, read_spec, spec_file
from tests.fixtures.salad_cloud import API_KEY, PREFIX, SPEC, SaladCloud
from tests.fixtures.salad_imds import SPEC as IMDS_SPEC
from tests.fixtures.salad_rented import SOME, Rented

from giornata.cli.settings import Settings
from giornata.fleets.salad import Options

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy" / "salad"
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


def test_without_the_document_nothing_is_checked_and_a_warning_says_so():
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
    with pytest.raises(Checked):
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
    spec.request(httpx.Request("POST", f"http://x{GROUPS}", json=good))
    wrong = good | body if body else {}
    with pytest.raises(Checked):
        spec.request(httpx.Request("POST", f"http://x{GROUPS}", json=wrong))


@pytest.mark.parametrize(
    ("method", "path", "more"),
    [
        ("GET", "/nothing", {}),
        ("DELETE", "", {}),
        ("PATCH", "/loras", {"json": {"replicas": 1}}),
        ("POST", "/loras/start", {"json": {}}),
        ("GET", "/LORAS", {}),
    ],
    ids=["no route", "no method", "content type", "a body", "a parameter"],
)
def test_a_request_that_is_not_published_is_noticed(spec, method, path, more):
    base = GROUPS if path != "/nothing" else PREFIX
    with pytest.raises(Checked):
        spec.request(httpx.Request(method, f"http://x{base}{path}", **more))


def test_a_wrong_answer_is_noticed(spec):
    request = httpx.Request("GET", f"http://x{GROUPS}/loras/instances")
    spec.response(request, httpx.Response(200, json={"instances": []}))
    for wrong in (
        httpx.Response(200, json={"instances": [{"id": "x"}]}),
        httpx.Response(200, json=[]),
        httpx.Response(200, html="<p>"),
        httpx.Response(204),
    ):
        with pytest.raises(Checked):
            spec.response(request, wrong)


def test_the_group_definition_is_one_that_the_provider_takes(spec):
    group = json.loads((DEPLOY / "group.json").read_text())
    spec.request(httpx.Request("POST", f"http://x{GROUPS}", json=group))


def test_the_group_definition_is_what_the_driver_makes_of_the_options():
    group = json.loads((DEPLOY / "group.json").read_text())
    options: dict[str, Any] = json.loads((DEPLOY / "options.json").read_text())
    rented = Rented(SaladCloud(organization=options["organization"], project=options["project"]))
    rented.fleet(**(dict.fromkeys(SOME) | options)).desired(1)
    made = next(body for body in rented.cloud.bodies if body and "container" in body)
    assert group | {"replicas": 1, "autostart_policy": True} == made
    assert set(options) <= set(Options.model_fields)


def test_every_variable_of_the_group_definition_is_a_setting():
    group = json.loads((DEPLOY / "group.json").read_text())
    own = [name for name in group["container"]["environment_variables"] if name.startswith("GIORNATA_")]
    assert own
    assert {name.removeprefix("GIORNATA_").lower() for name in own} <= set(Settings.model_fields)


def test_the_fake_refuses_what_the_provider_would():
    cloud = SaladCloud()
    url = f"http://x{GROUPS}/loras/start"
    headers = {"Salad-Api-Key": API_KEY}
    assert cloud.answer(httpx.Request("POST", url, headers=headers)).status_code == 400
    assert cloud.answer(httpx.Request("POST", url)).status_code == 403
    cloud.per_minute = 2
    limited = cloud.answer(httpx.Request("POST", url, headers=headers))
    assert (limited.status_code, limited.headers["retry-after"]) == (429, "7")
    cloud.advance(61)
    assert cloud.answer(httpx.Request("POST", url, headers=headers)).status_code == 400


def test_options_say_their_bounds_in_the_guide():
    guide = (ROOT / "docs" / "fleets" / "salad.md").read_text()
    missing = [name for name in Options.model_fields if f"`{name}`" not in guide]
    assert missing == []
