"""Signing a device in over HTTP: OAuth's forms for the device, pages and JSON for the person."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
from authlib.integrations.base_client.errors import OAuthError
from authlib.integrations.requests_client import OAuth2Session
from tests.fixtures.people import PASSWORD, Browser, browser_of, new_person
from tests.fixtures.served import Served

from giornata.protocol.account.people import Role
from giornata.protocol.account.sign_in import DEVICE_GRANT

EVIL = "https://evil.example"


class _Fields(HTMLParser):
    """Collects what a form of a page would send, the choices and the texts."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self.options: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        if tag == "input" and given.get("name"):
            self.fields[str(given["name"])] = given.get("value") or ""
        if tag == "option":
            self.options.append(str(given["value"]))


def read_page(response: httpx.Response) -> _Fields:
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    parser = _Fields()
    parser.feed(response.text)
    return parser


def begin(served: Served, **fields: str) -> dict[str, Any]:
    response = served.call("POST", "/v1/device/authorization", None, data={"client_id": "giornata"} | fields)
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    return dict(response.json())


def poll(served: Served, device_code: str) -> httpx.Response:
    form = {"grant_type": DEVICE_GRANT, "device_code": device_code, "client_id": "giornata"}
    return served.call("POST", "/v1/device/token", None, data=form)


@pytest.fixture
def eve(served: Served) -> Iterator[Browser]:
    yield browser_of(served, new_person(served.ctx, "eve", {"default": Role.MEMBER, "other": Role.VIEWER}))


def test_public_library_gets_a_key_by_this_flow(served: Served, eve: Browser) -> None:
    device = begin(served, scope="jobs:read", host_name="laptop")
    with OAuth2Session("giornata", token_endpoint_auth_method="none") as session:
        fetch = {"grant_type": DEVICE_GRANT, "device_code": device["device_code"]}
        with pytest.raises(OAuthError) as told:
            session.fetch_token(f"{served.url}/v1/device/token", **fetch)
        assert told.value.error == "authorization_pending"
        body = {"user_code": device["user_code"], "project_id": "other"}
        assert eve.call("POST", "/v1/device/approve", json=body).json()["project_id"] == "other"
        token = session.fetch_token(f"{served.url}/v1/device/token", **fetch)
    assert (token["token_type"], token["scope"], token["project_id"]) == ("Bearer", "jobs:read", "other")
    me = served.call("GET", "/v1/me", token["access_token"]).json()
    assert (me["user"]["email"], me["project_id"], me["scopes"]) == ("eve@example.com", "other", ["jobs:read"])


def test_addresses_lead_to_this_server(served: Served) -> None:
    device = begin(served)
    assert device["verification_uri"] == f"{served.url}/device"
    assert device["verification_uri_complete"] == f"{served.url}/device?user_code={device['user_code']}"
    assert re.fullmatch(r"[B-DF-HJ-NP-TV-XZ]{4}-[B-DF-HJ-NP-TV-XZ]{4}", device["user_code"])


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ({"scope": "node"}, "invalid_scope"),
        ({"key_expires_in_s": "soon", "host_name": ""}, "invalid_request"),
        ({"key_expires_in_s": "1"}, "invalid_request"),
    ],
)
def test_refusals_of_the_first_call_are_oauths(served: Served, form: dict[str, str], error: str) -> None:
    response = served.call("POST", "/v1/device/authorization", None, data=form)
    assert (response.status_code, response.json()["error"]) == (400, error)
    assert all(name in response.json()["error_description"] for name in form)


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ({}, "invalid_request"),
        ({"grant_type": "password", "device_code": "x"}, "unsupported_grant_type"),
        ({"grant_type": DEVICE_GRANT}, "invalid_request"),
        ({"grant_type": DEVICE_GRANT, "device_code": "unknown"}, "invalid_grant"),
    ],
)
def test_refusals_of_a_poll_are_oauths(served: Served, form: dict[str, str], error: str) -> None:
    response = served.call("POST", "/v1/device/token", None, data=form)
    assert (response.status_code, response.json()["error"]) == (400, error)


def test_body_that_is_no_form_is_refused(served: Served) -> None:
    as_json = served.call("POST", "/v1/device/authorization", None, json={"scope": "member"})
    assert (as_json.status_code, as_json.json()["error"]) == (400, "invalid_request")
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for content in (b"scope=member&scope=admin", b"\xff=1", b"&".join(b"a%d=1" % each for each in range(50))):
        response = served.call("POST", "/v1/device/authorization", None, content=content, headers=form)
        assert (response.status_code, response.json()["error"]) == (400, "invalid_request"), content


def test_poll_tells_slow_down_and_access_denied(served: Served, eve: Browser) -> None:
    device = begin(served)
    words = [poll(served, device["device_code"]).json()["error"] for _ in range(2)]
    assert words == ["authorization_pending", "slow_down"]
    assert eve.call("POST", "/v1/device/deny", json={"user_code": device["user_code"]}).status_code == 200
    assert poll(served, device["device_code"]).json()["error"] == "access_denied"


def test_approval_by_another_site_is_refused(served: Served, eve: Browser) -> None:
    device = begin(served)
    for token in ("", "0" * 64):
        headers = {"X-CSRF-Token": token}
        body = {"user_code": device["user_code"]}
        assert eve.call("POST", "/v1/device/approve", json=body, headers=headers).status_code == 403
        form = {"user_code": device["user_code"], "decision": "approve", "csrf_token": token}
        assert eve.call("POST", "/device", data=form).status_code == 403
    assert poll(served, device["device_code"]).json()["error"] == "authorization_pending"


def test_person_approves_on_the_page_with_a_click(served: Served, eve: Browser) -> None:
    device = begin(served, host_name="<b>laptop</b>", scope="jobs:read jobs:write")
    first = eve.call("GET", f"/device?user_code={device['user_code']}")
    fields = read_page(first).fields
    assert fields["user_code"] == device["user_code"]
    second = eve.call("POST", "/device", data=fields)
    shown = read_page(second)
    for text in (
        device["user_code"],
        "&lt;b&gt;laptop",
        "127.0.0.1",
        "seconds ago",
        "jobs:read jobs:write",
        "90 days",
    ):
        assert text in second.text, text
    assert (shown.options, "b" in shown.tags, "script" in shown.tags) == (["default", "other"], False, False)
    assert poll(served, device["device_code"]).json()["error"] == "authorization_pending", "nobody has clicked yet"
    third = eve.call("POST", "/device", data=shown.fields | {"decision": "approve", "project_id": "default"})
    assert "The device is signed in" in third.text
    token = poll(served, device["device_code"]).json()
    assert (token["project_id"], token["scope"]) == ("default", "jobs:read jobs:write")
    for page in (first, second, third):
        assert page.headers["content-security-policy"].startswith("default-src 'self'; ")
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["x-content-type-options"] == "nosniff"
        assert eve.secret not in page.text


def test_person_denies_on_the_page(served: Served, eve: Browser) -> None:
    device = begin(served)
    form = {"user_code": device["user_code"], "decision": "deny", "csrf_token": eve.csrf_token}
    assert "not signed in" in eve.call("POST", "/device", data=form).text
    assert poll(served, device["device_code"]).json()["error"] == "access_denied"
    assert eve.call("POST", "/device", data=form | {"decision": "approve"}).status_code == 404


def test_page_says_what_is_wrong_with_a_code(served: Served, eve: Browser) -> None:
    form = {"user_code": "<script>", "csrf_token": eve.csrf_token}
    for _ in range(5):
        wrong = eve.call("POST", "/device", data=form)
        assert (wrong.status_code, "no device waits" in wrong.text) == (404, True)
    late = eve.call("POST", "/device", data=form)
    assert (late.status_code, late.headers["retry-after"]) == (429, "1")
    assert "<script>" not in wrong.text + eve.call("GET", "/device?user_code=<script>").text


def test_page_takes_a_session_and_leads_back(served: Served) -> None:
    new_person(served.ctx, "kim", {"default": Role.MEMBER})
    device = begin(served)
    away = served.http.get(f"{served.url}/device", params={"user_code": device["user_code"]})
    assert away.status_code == 303
    page = served.http.get(served.url + away.headers["location"], follow_redirects=True)
    form = read_page(page).fields | {"email": "kim@example.com", "password": PASSWORD}
    assert form["next"] == f"/device?user_code={device['user_code']}"
    done = served.http.post(page.url, data=form, headers={"Origin": served.url})
    assert (done.status_code, done.headers["location"]) == (303, form["next"])
    assert "HttpOnly" in done.headers["set-cookie"]
    dead = served.http.post(f"{served.url}/device", headers={"Cookie": "giornata-session=gs_none"}, data={"a": "b"})
    assert dead.status_code == 303


@pytest.mark.parametrize(
    "headers", [{"Origin": EVIL}, {"Origin": "null"}, {}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://"}]
)
def test_sign_in_form_of_another_site_is_refused(served: Served, headers: dict[str, str]) -> None:
    new_person(served.ctx, "kim")
    form = {"email": "kim@example.com", "password": PASSWORD}
    response = served.http.post(f"{served.url}/sign-in", data=form, headers=headers)
    assert (response.status_code, "set-cookie" in response.headers) == (403, False)


def test_sign_in_form_leads_to_no_other_site_and_tells_nothing_of_accounts(served: Served) -> None:
    new_person(served.ctx, "kim")
    form, own = {"email": "kim@example.com", "password": PASSWORD, "return_to": EVIL}, {"Origin": served.url}
    done = served.http.post(f"{served.url}/sign-in", data=form, headers=own)
    assert done.headers["location"] == "/sign-in"
    wrong, unknown = (
        served.http.post(f"{served.url}/sign-in", data=form | change, headers=own)
        for change in ({"password": "wrong"}, {"email": "nobody@example.com"})
    )
    assert (wrong.status_code, wrong.text) == (401, unknown.text)
    assert served.http.post(f"{served.url}/sign-in", data={"email": "kim"}, headers=own).status_code == 400


def test_person_without_a_project_is_told_so(served: Served) -> None:
    nobody = browser_of(served, new_person(served.ctx, "nobody"))
    device = begin(served)
    form = {"user_code": device["user_code"], "csrf_token": nobody.csrf_token}
    assert "in no project yet" in nobody.call("POST", "/device", data=form).text
    assert nobody.call("POST", "/device", data=form | {"decision": "approve"}).status_code == 403


def test_operator_may_choose_the_operators_project(served: Served) -> None:
    boss = browser_of(served, new_person(served.ctx, "boss", operator=True))
    device = begin(served, scope="admin")
    form = {"user_code": device["user_code"], "csrf_token": boss.csrf_token}
    assert read_page(boss.call("POST", "/device", data=form)).options == ["default"]
    boss.call("POST", "/device", data=form | {"decision": "approve"})
    token = poll(served, device["device_code"]).json()
    assert served.call("GET", "/v1/me", token["access_token"]).json()["operator"]


def test_too_many_devices_of_an_address_get_a_429(served: Served) -> None:
    for _ in range(20):
        begin(served)
    response = served.call("POST", "/v1/device/authorization", None, data={"scope": "member"})
    assert (response.status_code, response.json()["code"]) == (429, "too-many")
