"""Signing in at an OpenID provider, as a browser does it: from the link to the session."""

import json
from collections.abc import Iterator
from dataclasses import replace
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fixtures.openid import EVE, OpenIdServer, client_of, linked_identity, providing
from tests.fixtures.people import PASSWORD, ROOT, Browser, browser_of, new_person
from tests.fixtures.served import Served, serving

from giornata.api.app import create_app
from giornata.control.access.invitations import create_invitation
from giornata.control.access.signing_in.oidc_sign_in import SIGN_IN_TTL_S
from giornata.control.access.users import change_user
from giornata.protocol.account.people import ChangeUser, CreateInvitation, Role, User

PROVIDER, SESSION = "giornata-provider", "giornata-session"


@pytest.fixture
def provider() -> Iterator[OpenIdServer]:
    with providing() as running:
        yield running


@pytest.fixture
def home(tmp_path: Path, provider: OpenIdServer) -> Iterator[Served]:
    with client_of(provider) as client, serving(tmp_path, identity_provider=client) as served:
        yield served


def cookies(response: httpx.Response) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in response.headers.get_list("set-cookie"):
        found |= {name: morsel.value for name, morsel in SimpleCookie(line).items()}
    return found


def get(served: Served, url: str, held: dict[str, str]) -> httpx.Response:
    cookie = "; ".join(f"{name}={value}" for name, value in held.items())
    return served.http.get(url, headers={"Cookie": cookie} if cookie else {})


def begin(served: Served, return_to: str = "") -> tuple[str, dict[str, str]]:
    """Follow the link of the sign-in page; return where it leads, and what the browser holds."""
    response = served.http.get(f"{served.url}/sign-in/provider", params={"return_to": return_to})
    assert response.status_code == 303, response.text
    return response.headers["location"], cookies(response)


def sign_in(served: Served, provider: OpenIdServer, return_to: str = "") -> httpx.Response:
    url, held = begin(served, return_to)
    return get(served, provider.sign_in(url), held)


def me_of(served: Served, response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 303, response.text
    reply = get(served, f"{served.url}/v1/me", {SESSION: cookies(response)[SESSION]})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def nobody_signed_in(response: httpx.Response, status: int) -> bool:
    assert response.status_code == status, response.text
    assert SESSION not in cookies(response)
    return True


def test_first_sign_in_makes_a_person_of_no_project_whatever_the_provider_says(
    home: Served, provider: OpenIdServer
) -> None:
    provider.person |= {"groups": ["admin"], "role": "operator", "operator": True, "projects": ["default"]}
    me = me_of(home, sign_in(home, provider))
    assert (me["user"]["email"], me["user"]["name"], me["user"]["operator"]) == ("eve@example.com", "Eve", False)
    assert (me["scopes"], me["projects"], me["operator"]) == ([], [], False)


def test_first_sign_in_is_in_the_audit_log_without_an_address(home: Served, provider: OpenIdServer) -> None:
    me = me_of(home, sign_in(home, provider))
    me_of(home, sign_in(home, provider))
    rows = list(home.client(home.keys.admin).audit_log(actor=me["user"]["id"]))
    assert [row.verb for row in rows] == ["session.open", "session.open", "identity.link", "user.create"]
    assert {row.address for row in rows} == {"127.0.0.1"}
    assert "eve@" not in json.dumps([row.model_dump(mode="json") for row in rows])


def test_person_is_known_by_issuer_and_subject(home: Served, provider: OpenIdServer) -> None:
    first = me_of(home, sign_in(home, provider))["user"]
    provider.person["email"] = "eve@renamed.example"
    again = me_of(home, sign_in(home, provider))["user"]
    assert again == first
    provider.person = {**EVE, "sub": "somebody else"}
    assert nobody_signed_in(sign_in(home, provider), 409)


def test_cookies_are_for_no_script_and_the_session_is_an_ordinary_one(home: Served, provider: OpenIdServer) -> None:
    url, held = begin(home)
    response = get(home, provider.sign_in(url), held)
    lines = response.headers.get_list("set-cookie")
    assert all("HttpOnly" in line and "SameSite=lax" in line for line in lines), lines
    assert cookies(response)[PROVIDER] == ""
    session = {SESSION: cookies(response)[SESSION]}
    listed = get(home, f"{home.url}/v1/sessions", session).json()["items"]
    assert [each["current"] for each in listed] == [True]
    abroad = home.http.get(f"{home.url}/sign-in/provider", headers={"Host": "gpu.example.com"})
    assert abroad.headers["set-cookie"].startswith("__Host-giornata-provider=")
    assert "Secure" in abroad.headers["set-cookie"]


def test_address_of_a_local_account_does_not_open_it(home: Served, provider: OpenIdServer) -> None:
    new_person(home.ctx, "eve", {"other": Role.OWNER}, operator=True)
    response = sign_in(home, provider)
    assert nobody_signed_in(response, 409)
    assert "link the provider" in response.text


def linked_by(home: Served, browser: Browser) -> tuple[str, dict[str, str]]:
    begun = browser.call("POST", "/v1/oidc/authorizations", json={"link": True, "return_to": "/device"})
    assert begun.status_code == 201, begun.text
    return begun.json()["authorization_url"], cookies(begun)


def test_person_links_the_provider_to_an_own_account(home: Served, provider: OpenIdServer) -> None:
    user = new_person(home.ctx, "eve", {"other": Role.MEMBER})
    url, held = linked_by(home, browser_of(home, user))
    response = get(home, provider.sign_in(url), held)
    assert response.headers["location"] == "/device"
    assert me_of(home, response)["user"]["id"] == user.id
    assert me_of(home, sign_in(home, provider))["user"]["id"] == user.id
    kim = new_person(home.ctx, "kim")
    url, held = linked_by(home, browser_of(home, kim))
    assert nobody_signed_in(get(home, provider.sign_in(url), held), 409)


def test_link_takes_a_session_and_its_csrf_token(home: Served) -> None:
    body = {"link": True}
    assert home.call("POST", "/v1/oidc/authorizations", None, json=body).status_code == 401
    assert home.call("POST", "/v1/oidc/authorizations", home.keys.admin, json=body).status_code == 401
    browser = replace(browser_of(home, new_person(home.ctx, "kim")), csrf_token="0" * 64)
    assert browser.call("POST", "/v1/oidc/authorizations", json=body).status_code == 403


def test_person_lists_and_unlinks_an_account_which_then_signs_nobody_in(home: Served, provider: OpenIdServer) -> None:
    user = new_person(home.ctx, "eve", {"other": Role.MEMBER})
    browser = browser_of(home, user)
    url, held = linked_by(home, browser)
    back = get(home, provider.sign_in(url), held)
    (linked,) = browser.call("GET", "/v1/me/identities").json()["items"]
    assert (linked["issuer"], linked["subject"], linked["signs_in"]) == (provider.url, "eve-1", True)
    assert browser.call("DELETE", f"/v1/me/identities/{linked['id']}").status_code == 204
    assert browser.call("GET", "/v1/me/identities").json() == {"items": [], "password": True}
    assert browser.call("DELETE", f"/v1/me/identities/{linked['id']}").status_code == 404
    assert nobody_signed_in(sign_in(home, provider), 409), "the address belongs to an account with a password"
    assert me_of(home, back)["user"]["id"] == user.id, "sessions go on"


def test_last_way_to_sign_in_is_not_unlinked(home: Served, provider: OpenIdServer) -> None:
    session = cookies(sign_in(home, provider))[SESSION]
    opened = get(home, f"{home.url}/v1/session", {SESSION: session}).json()
    eve = Browser(served=home, user=User(**opened["user"]), secret=session, csrf_token=opened["csrf_token"])
    (linked,) = eve.call("GET", "/v1/me/identities").json()["items"]
    one = f"/v1/me/identities/{linked['id']}"
    assert eve.call("DELETE", one).status_code == 409
    elsewhere = linked_identity(home.ctx, eve.user.id, issuer="https://id.elsewhere")
    assert eve.call("DELETE", one).status_code == 409, "a provider that is not asked any more signs nobody in"
    assert eve.call("DELETE", f"/v1/me/identities/{elsewhere}").status_code == 204
    linked_identity(home.ctx, eve.user.id, issuer=provider.url, subject="eve-2")
    assert eve.call("DELETE", one).status_code == 204
    (left,) = eve.call("GET", "/v1/me/identities").json()["items"]
    assert eve.call("DELETE", f"/v1/me/identities/{left['id']}").status_code == 409


def test_account_of_another_person_is_not_unlinked(home: Served) -> None:
    own = linked_identity(home.ctx, new_person(home.ctx, "eve").id)
    kim = browser_of(home, new_person(home.ctx, "kim"))
    assert kim.call("GET", "/v1/me/identities").json()["items"] == []
    foreign, unknown = (kim.call("DELETE", f"/v1/me/identities/{each}") for each in (own, "identity_0"))
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.json()["detail"].replace(own, "identity_0") == unknown.json()["detail"]


def test_invitation_lets_a_person_in_once(home: Served, provider: OpenIdServer) -> None:
    secret = create_invitation(home.ctx, ROOT, CreateInvitation(project_id="other", role=Role.MEMBER)).secret
    begun = home.call("POST", "/v1/oidc/authorizations", None, json={"invitation": secret})
    held = cookies(begun)
    assert secret not in begun.text + held[PROVIDER]
    me = me_of(home, get(home, provider.sign_in(begun.json()["authorization_url"]), held))
    assert [(each["project_id"], each["role"]) for each in me["projects"]] == [("other", "member")]
    again = home.call("POST", "/v1/oidc/authorizations", None, json={"invitation": secret})
    assert again.status_code == 404


def test_invitation_that_was_used_meanwhile_makes_no_account(home: Served, provider: OpenIdServer) -> None:
    secret = create_invitation(home.ctx, ROOT, CreateInvitation(project_id="other", role=Role.MEMBER)).secret
    begun = home.call("POST", "/v1/oidc/authorizations", None, json={"invitation": secret})
    joined = {"secret": secret, "email": "kim@example.com", "password": PASSWORD}
    assert home.call("POST", "/v1/invitations/accept", None, json=joined).status_code == 201
    back = provider.sign_in(begun.json()["authorization_url"])
    assert nobody_signed_in(get(home, back, cookies(begun)), 404)
    users = home.call("GET", "/v1/users", home.keys.admin).json()["items"]
    assert [each["email"] for each in users] == ["kim@example.com"]


def test_sign_in_that_another_browser_began_is_refused(home: Served, provider: OpenIdServer) -> None:
    url, held = begin(home)
    back = provider.sign_in(url)
    _, of_another = begin(home)
    for wrong in ({}, of_another, {PROVIDER: "nonsense"}, {PROVIDER: held[PROVIDER][:-4] + "AAAA"}):
        assert nobody_signed_in(get(home, back, wrong), 401)
    assert nobody_signed_in(get(home, back.replace("state=", "state=x"), held), 401)
    assert "/token" not in provider.asked, "the code of a refused sign-in is not spent"
    assert get(home, back, held).status_code == 303
    assert nobody_signed_in(get(home, back, held), 401)


def test_project_secret_in_the_cookie_is_no_sign_in(home: Served, provider: OpenIdServer) -> None:
    sealed = home.ctx.sealer.seal('["something else", {}]')
    url, _ = begin(home)
    assert nobody_signed_in(get(home, provider.sign_in(url), {PROVIDER: sealed}), 401)


def test_answer_of_another_issuer_and_a_refusal_sign_nobody_in(home: Served, provider: OpenIdServer) -> None:
    url, held = begin(home)
    back = httpx.URL(provider.sign_in(url))
    mixed = str(back.copy_set_param("iss", "https://evil.example"))
    assert nobody_signed_in(get(home, mixed, held), 401)
    for error in ("access_denied", "<script>alert(1)</script>"):
        denied = back.copy_remove_param("code").copy_set_param("error", error)
        response = get(home, str(denied), held)
        assert nobody_signed_in(response, 401)
        assert "<script>" not in response.text


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"nonce": "another"}, 401),
        ({"aud": "another"}, 401),
        ({"iss": "https://evil.example"}, 401),
        ({"exp": 1}, 401),
        ({"email_verified": False}, 403),
        ({"email_verified": None}, 403),
        ({"email_verified": "true"}, 403),
        ({"email": None}, 403),
        ({"email": "no address"}, 403),
    ],
    ids=str,
)
def test_token_that_is_not_good_makes_no_account(
    home: Served, provider: OpenIdServer, change: dict[str, object], status: int
) -> None:
    provider.claims = change
    assert nobody_signed_in(sign_in(home, provider), status)
    assert home.call("GET", "/v1/users", home.keys.admin).json()["items"] == []


def test_domain_that_is_not_allowed_has_no_account_and_loses_one(tmp_path: Path, provider: OpenIdServer) -> None:
    with client_of(provider) as client, serving(tmp_path, identity_provider=client) as served:
        strict = replace(served.ctx, policy=replace(served.ctx.policy, email_domains=("Example.com",)))
        served.app.state.context = strict
        for email in ("eve@sub.example.com", "eve@example.com.evil.example", "eve@notexample.com"):
            provider.person["email"] = email
            assert nobody_signed_in(sign_in(served, provider), 403)
        provider.person["email"] = "eve@example.com"
        assert me_of(served, sign_in(served, provider))["user"]["email"] == "eve@example.com"
        provider.person["email"] = "eve@evil.example"
        assert nobody_signed_in(sign_in(served, provider), 403)


def test_unverified_address_is_taken_where_the_operator_says_so(home: Served, provider: OpenIdServer) -> None:
    home.app.state.context = replace(home.ctx, policy=replace(home.ctx.policy, unverified_email=True))
    provider.claims = {"email_verified": None}
    assert me_of(home, sign_in(home, provider))["user"]["email"] == "eve@example.com"


def test_deactivated_person_does_not_come_back_by_the_provider(home: Served, provider: OpenIdServer) -> None:
    user = me_of(home, sign_in(home, provider))["user"]
    change_user(home.ctx, ROOT, user["id"], ChangeUser(active=False))
    assert nobody_signed_in(sign_in(home, provider), 401)


def test_account_of_the_provider_has_no_password(home: Served, provider: OpenIdServer) -> None:
    sign_in(home, provider)
    for password in (PASSWORD, " ", "plain:"):
        response = home.call("POST", "/v1/session", None, json={"email": EVE["email"], "password": password})
        assert response.status_code == 401


@pytest.mark.parametrize(
    "return_to", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/\tx", ""]
)
def test_browser_is_led_to_no_other_site(home: Served, provider: OpenIdServer, return_to: str) -> None:
    assert sign_in(home, provider, return_to).headers["location"] == "/sign-in"


def test_browser_comes_back_to_the_page_that_it_wanted(home: Served, provider: OpenIdServer) -> None:
    response = sign_in(home, provider, "/device?user_code=BCDF-GHJK")
    assert response.headers["location"] == "/device?user_code=BCDF-GHJK"


def test_provider_that_is_down_is_a_503_and_passwords_still_work(home: Served, provider: OpenIdServer) -> None:
    new_person(home.ctx, "kim")
    url, held = begin(home)
    back = provider.sign_in(url)
    provider.down = True
    response = get(home, back, held)
    assert nobody_signed_in(response, 503)
    assert provider.url not in response.text
    given = {"email": "kim@example.com", "password": PASSWORD}
    assert home.call("POST", "/v1/session", None, json=given).status_code == 201


def test_session_of_before_ends_with_the_sign_in(home: Served, provider: OpenIdServer) -> None:
    kim = browser_of(home, new_person(home.ctx, "kim"))
    url, held = begin(home)
    get(home, provider.sign_in(url), {**held, SESSION: kim.secret})
    assert kim.call("GET", "/v1/session").status_code == 401


def test_sign_in_is_forgotten_after_ten_minutes(home: Served, provider: OpenIdServer) -> None:
    url, held = begin(home)
    back = provider.sign_in(url)
    later_ms = home.ctx.clock.now_ms() + SIGN_IN_TTL_S * 1000

    class Later:
        def now_ms(self) -> int:
            return later_ms

    home.app.state.context = replace(home.ctx, clock=Later())
    assert nobody_signed_in(get(home, back, held), 401)


def test_installation_without_a_provider_says_so(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        assert served.http.get(f"{served.url}/sign-in/provider").status_code == 404
        assert served.call("POST", "/v1/oidc/authorizations", None, json={}).status_code == 404
        assert "Sign in with" not in served.http.get(f"{served.url}/sign-in").text
        assert create_app(served.ctx).state.context.identity_provider.name == ""
