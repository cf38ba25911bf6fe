"""Sign in on a page: by password, by a one-time link, by an invitation; and who is refused."""

import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from http.cookies import SimpleCookie
from pathlib import Path

import httpx
import pytest
from tests.fixtures.dashboard import PROJECT, Furnished, furnished
from tests.fixtures.openid import OpenIdServer, client_of, providing
from tests.fixtures.people import PASSWORD, ROOT, browser_of, new_person
from tests.fixtures.served import Served, serving

from giornata.control.access.invitations import create_invitation
from giornata.control.access.signing_in.sign_in_links import LINK_MS, SignInLinks
from giornata.control.caller import Caller
from giornata.dashboard.rendering import static_url
from giornata.dashboard.sign_in_pages import HOME, own_page
from giornata.protocol.account.people import CreateInvitation, Role
from giornata.protocol.project.admin import Scope


@pytest.fixture
def home(tmp_path: Path) -> Furnished:
    with furnished(tmp_path) as made:
        yield made


def post(installation: Furnished, path: str, fields: dict[str, str], **more: object) -> httpx.Response:
    return installation.served.call("POST", path, None, data=fields, **more)


def sign_in(installation: Furnished, **fields: str) -> httpx.Response:
    return post(
        installation, "/dashboard/sign-in", {"email": installation.owner.email, "password": PASSWORD} | fields
    )


def test_the_right_password_opens_a_session_and_leads_to_the_page_that_was_wanted(installation: Furnished) -> None:
    response = sign_in(installation, next=f"/dashboard/projects/{PROJECT}/jobs?state=failed")
    assert response.status_code == 303
    assert response.headers["location"] == f"/dashboard/projects/{PROJECT}/jobs?state=failed"
    assert re.match(r"giornata-session=gs_\w+; HttpOnly;.*SameSite=lax", response.headers["set-cookie"])


def test_a_wrong_password_is_refused_and_the_address_is_kept(installation: Furnished) -> None:
    response = sign_in(installation, password="wrong")
    assert response.status_code == 401
    assert "set-cookie" not in response.headers
    assert f'value="{installation.owner.email}"' in response.text
    assert "wrong" not in response.text.replace("password is wrong", "")


def test_missing_field_has_its_fault_beside_it(installation: Furnished) -> None:
    response = sign_in(installation, email="<script>", password="")
    assert response.status_code == 400
    assert 'id="email-fault"' in response.text
    assert 'id="password-fault"' in response.text
    assert "<script>" not in response.text.replace("<script src=", "")


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_a_form_of_another_site_signs_nobody_in(installation: Furnished, headers: dict[str, str]) -> None:
    fields = {"email": installation.owner.email, "password": PASSWORD}
    response = post(installation, "/dashboard/sign-in", fields, headers=headers)
    assert (response.status_code, "set-cookie" in response.headers) == (403, False)


@pytest.mark.parametrize(
    "address",
    [
        "https://evil.example/",
        "//evil.example",
        "/dashboard//evil.example",
        "/v1/jobs",
        "/dashboard/\\evil",
        "",
        "x",
        "/devices",
        "/device/x",
        "/device?x=//evil.example",
    ],
)
def test_a_sign_in_leads_to_no_other_site(address: str) -> None:
    assert own_page(address) == HOME


def test_a_device_that_waits_for_a_person_is_led_back_to() -> None:
    assert own_page("/device?user_code=BCDF-GHJK") == "/device?user_code=BCDF-GHJK"
    assert own_page("/device") == "/device"


def test_there_is_one_sign_in_page_and_the_page_of_a_device_has_its_look(installation: Furnished) -> None:
    led = installation.served.call("GET", "/sign-in?return_to=/device?user_code=BCDF-GHJK", None)
    assert led.headers["location"] == "/dashboard/sign-in?next=%2Fdevice%3Fuser_code%3DBCDF-GHJK"
    assert installation.served.call("GET", "/sign-in", None).headers["location"] == HOME
    assert "Sign in with" not in installation.served.call("GET", "/dashboard/sign-in", None).text
    device = browser_of(installation.served, installation.viewer).call("GET", "/device")
    assert f'<link rel="stylesheet" href="{static_url("dashboard.css")}">' in device.text


def test_the_button_of_a_provider_leads_there_and_back_to_the_page_that_was_wanted(tmp_path: Path) -> None:
    with (
        providing() as provider,
        client_of(provider) as client,
        serving(tmp_path, identity_provider=client) as served,
    ):
        page = served.http.get(
            f"{served.url}/dashboard/sign-in", params={"next": "/dashboard/projects/art/jobs"}
        ).text
        button = re.search(r'href="(/sign-in/provider[^"]+)">Sign in with', page)
        assert button is not None
        begun = served.http.get(served.url + button[1].replace("&amp;", "&"))
        cookie = begun.headers["set-cookie"].partition(";")[0]
        back = served.http.get(provider.sign_in(begun.headers["location"]), headers={"Cookie": cookie})
        assert back.headers["location"] == "/dashboard/projects/art/jobs"
        assert "giornata-session=gs_" in back.headers["set-cookie"]


def test_a_link_signs_the_operator_in_once(installation: Furnished) -> None:
    secret = installation.links.make(installation.served.ctx)
    first = installation.served.call("GET", f"/dashboard/enter?link={secret}", None)
    assert (first.status_code, first.headers["location"]) == (303, HOME)
    cookie = first.headers["set-cookie"].partition(";")[0]
    page = installation.served.call("GET", "/dashboard/projects/default", None, headers={"Cookie": cookie})
    assert page.status_code == 200
    assert "operator@localhost" in page.text
    second = installation.served.call("GET", f"/dashboard/enter?link={secret}", None)
    assert (second.status_code, "set-cookie" in second.headers) == (401, False)


def test_a_link_that_is_too_old_or_guessed_signs_nobody_in(installation: Furnished) -> None:
    class Later:
        def now_ms(self) -> int:
            return installation.served.ctx.clock.now_ms() - LINK_MS - 1

    from dataclasses import replace

    secret = installation.links.make(replace(installation.served.ctx, clock=Later()))
    for link in (secret, "guessed", ""):
        response = installation.served.call("GET", f"/dashboard/enter?link={link}", None)
        assert response.status_code in {401, 303}
        assert "set-cookie" not in response.headers


def test_the_account_of_the_links_has_no_password_that_anybody_knows(installation: Furnished) -> None:
    links = SignInLinks()
    assert links is not installation.links
    response = sign_in(installation, email="operator@localhost", password="plain:")
    assert response.status_code == 401


def test_signing_out_ends_the_session(installation: Furnished) -> None:
    browser = browser_of(installation.served, installation.viewer)
    assert browser.call("GET", f"/dashboard/projects/{PROJECT}").status_code == 200
    response = browser.call("POST", "/dashboard/sign-out")
    assert (response.status_code, response.headers["location"]) == (303, "/dashboard/sign-in")
    assert browser.call("GET", f"/dashboard/projects/{PROJECT}").status_code == 303


def test_an_invitation_makes_an_account_and_leads_to_the_project(home: Furnished) -> None:
    ann = Caller(project_id=PROJECT, scopes=Scope.ADMIN.reach, key_id="key_a", user_id=home.owner.id, is_session=True)
    invited = create_invitation(home.served.ctx, ann, CreateInvitation(role=Role.VIEWER))
    fields = {"secret": invited.secret, "email": "new@example.com", "password": "short"}
    refused = post(home, "/dashboard/invitation", fields)
    assert refused.status_code == 400
    assert 'id="password-fault"' in refused.text
    accepted = post(home, "/dashboard/invitation", fields | {"password": "a long sentence of hers"})
    assert accepted.status_code == 303
    assert accepted.headers["location"] == f"/dashboard/projects/{PROJECT}"
    assert post(home, "/dashboard/invitation", fields | {"password": "a long sentence of hers"}).status_code != 303


def test_the_first_pages_lead_to_the_dashboard(installation: Furnished) -> None:
    for path, target in (("/", HOME), ("/ui", "/dashboard/ui"), ("/docs", "/dashboard/api")):
        response = installation.served.call("GET", path, None)
        assert (response.status_code, response.headers["location"]) == (307, target)


@pytest.fixture
def with_provider(tmp_path: Path) -> Iterator[tuple[Served, OpenIdServer]]:
    with (
        providing() as provider,
        client_of(provider) as client,
        serving(tmp_path, identity_provider=client, links=SignInLinks()) as served,
    ):
        yield served, provider


def led_to(response: httpx.Response) -> str:
    """The page of the provider to which the browser is led, by a page and not by a redirect."""
    assert response.status_code == 200, response.text
    found = re.search(r'http-equiv="refresh" content="0; url=([^"]+)"', response.text)
    assert found is not None
    return unescape(found[1])


def held_by(response: httpx.Response) -> dict[str, str]:
    found: SimpleCookie = SimpleCookie()
    for line in response.headers.get_list("set-cookie"):
        found.load(line)
    return {"Cookie": "; ".join(f"{name}={each.value}" for name, each in found.items())}


def test_an_invitation_is_accepted_by_an_account_of_the_provider(
    with_provider: tuple[Served, OpenIdServer],
) -> None:
    served, provider = with_provider
    secret = create_invitation(served.ctx, ROOT, CreateInvitation(project_id="other", role=Role.MEMBER)).secret
    page = served.call("GET", "/dashboard/invitation", None)
    assert 'formaction="/dashboard/invitation/provider"' in page.text
    begun = served.call("POST", "/dashboard/invitation/provider", None, data={"secret": secret})
    assert secret not in begun.text + begun.headers["set-cookie"]
    back = served.http.get(provider.sign_in(led_to(begun)), headers=held_by(begun))
    assert (back.status_code, back.headers["location"]) == (303, "/dashboard/projects/other")
    project = served.http.get(f"{served.url}{back.headers['location']}", headers=held_by(back))
    assert (project.status_code, "eve@example.com" in project.text) == (200, True)
    again = served.call("POST", "/dashboard/invitation/provider", None, data={"secret": secret})
    assert again.status_code == 404
    assert "set-cookie" not in again.headers


def test_an_invitation_that_is_not_whole_or_comes_from_another_site_leads_nowhere(
    with_provider: tuple[Served, OpenIdServer],
) -> None:
    served, _ = with_provider
    secret = create_invitation(served.ctx, ROOT, CreateInvitation(project_id="other", role=Role.MEMBER)).secret
    path, evil = "/dashboard/invitation/provider", {"Origin": "https://evil.example"}
    assert served.call("POST", path, None, data={}).status_code == 400
    assert served.call("POST", path, None, data={"secret": "gi_guessed"}).status_code == 404
    assert served.call("POST", path, None, data={"secret": secret}, headers=evil).status_code == 403


def test_the_account_page_links_and_unlinks_accounts_of_the_provider(
    with_provider: tuple[Served, OpenIdServer],
) -> None:
    served, provider = with_provider
    browser = browser_of(served, new_person(served.ctx, "kim"))
    forged = replace(browser, csrf_token="0" * 64).call("POST", "/dashboard/account/link", data={})
    assert forged.status_code == 404
    assert "set-cookie" not in forged.headers
    begun = browser.call("POST", "/dashboard/account/link", data={"csrf": browser.csrf_token})
    held = held_by(begun)["Cookie"]
    cookie = {"Cookie": f"{held}; giornata-session={browser.secret}"}
    back = served.http.get(provider.sign_in(led_to(begun)), headers=cookie)
    assert (back.status_code, back.headers["location"]) == (303, "/dashboard/account")
    kim = browser_of(served, browser.user)
    text = kim.call("GET", "/dashboard/account").text
    assert "eve-1" in text
    found = re.search(r'action="(/dashboard/account/identities/[^"]+/unlink)"', text)
    assert found is not None
    assert replace(kim, csrf_token="0" * 64).call("POST", found[1], data={}).status_code == 404
    assert "eve-1" in kim.call("GET", "/dashboard/account").text
    unlinked = kim.call("POST", found[1], data={"csrf": kim.csrf_token})
    assert (unlinked.status_code, unlinked.headers["location"]) == (303, "/dashboard/account?said=removed")
    assert "eve-1" not in kim.call("GET", "/dashboard/account").text


def test_the_account_page_says_why_the_last_way_in_stays(with_provider: tuple[Served, OpenIdServer]) -> None:
    served, provider = with_provider
    url = served.http.get(f"{served.url}/sign-in/provider")
    back = served.http.get(provider.sign_in(url.headers["location"]), headers=held_by(url))
    cookie = held_by(back)
    text = served.http.get(f"{served.url}/dashboard/account", headers=cookie).text
    found = re.search(r'action="(/dashboard/account/identities/[^"]+/unlink)"', text)
    token = re.search(r'name="csrf" value="(\w+)"', text)
    assert found is not None and token is not None
    refused = served.http.post(f"{served.url}{found[1]}", data={"csrf": token[1]}, headers=cookie)
    assert refused.status_code == 409
    assert "last way to sign in" in refused.text
