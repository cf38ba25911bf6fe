"""Signing in over HTTP: the cookie, the CSRF token, and what a browser on another host gets."""

import threading
from dataclasses import replace
from http.cookies import SimpleCookie

import httpx
import pytest
from argon2 import PasswordHasher
from tests.fixtures.contexts import PlainPasswords
from tests.fixtures.people import PASSWORD, browser_of, new_person
from tests.fixtures.served import QUICK, Served

from giornata.api.app import create_app
from giornata.api.server import HttpServer, listen
from giornata.cli.operate.passwords import Argon2Passwords
from giornata.protocol.account.people import Role

EVE = {"email": "eve@example.com", "password": PASSWORD}


@pytest.fixture
def eve(served: Served) -> Served:
    new_person(served.ctx, "eve", {"default": Role.MEMBER, "other": Role.VIEWER})
    return served


def cookie_of(response: httpx.Response) -> SimpleCookie:
    return SimpleCookie(response.headers["set-cookie"])


def test_cookie_is_for_no_script_and_no_foreign_page(eve: Served) -> None:
    response = eve.call("POST", "/v1/session", None, json=EVE)
    assert response.status_code == 201
    (morsel,) = cookie_of(response).values()
    assert (morsel.key, morsel["httponly"], morsel["samesite"], morsel["path"]) == (
        *("giornata-session", True, "lax"),
        "/",
    )
    assert not morsel["secure"], "http on this machine itself"
    assert not morsel["domain"]
    assert morsel.value not in response.text
    assert response.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("host", ["gpu.example.com", "192.0.2.1:8470", "localhost.example.com"])
def test_cookie_is_secure_wherever_the_host_is_not_this_machine(eve: Served, host: str) -> None:
    response = eve.call("POST", "/v1/session", None, json=EVE, headers={"Host": host})
    (morsel,) = cookie_of(response).values()
    assert (morsel.key, morsel["secure"]) == ("__Host-giornata-session", True)
    plain = {"Host": host, "Cookie": f"giornata-session={morsel.value}"}
    assert eve.call("GET", "/v1/me", None, headers=plain).status_code == 401
    guarded = {"Host": host, "Cookie": f"__Host-giornata-session={morsel.value}"}
    assert eve.call("GET", "/v1/me", None, headers=guarded).status_code == 200


def test_session_acts_in_the_project_that_the_header_names(eve: Served) -> None:
    opened = eve.call("POST", "/v1/session", None, json=EVE)
    (morsel,) = cookie_of(opened).values()
    headers = {"Cookie": f"{morsel.key}={morsel.value}", "X-CSRF-Token": opened.json()["csrf_token"]}
    me = eve.call("GET", "/v1/me", None, headers=headers).json()
    assert (me["project_id"], {each["project_id"]: each["role"] for each in me["projects"]}) == (
        "default",
        {"default": "member", "other": "viewer"},
    )
    job = {"kind": "x-count", "spec": {"steps": 5}}
    made = eve.call("POST", "/v1/jobs", None, json=job, headers=headers)
    assert (made.status_code, made.json()["created_by"]) == (201, me["user"]["id"])
    elsewhere = headers | {"X-Project": "other"}
    assert eve.call("POST", "/v1/jobs", None, json=job, headers=elsewhere).status_code == 403
    assert eve.call("GET", "/v1/jobs", None, headers=elsewhere).json()["items"] == []


def test_key_goes_before_a_cookie_and_needs_no_token(eve: Served) -> None:
    opened = eve.call("POST", "/v1/session", None, json=EVE)
    (morsel,) = cookie_of(opened).values()
    headers = {"Cookie": f"{morsel.key}={morsel.value}"}
    me = eve.call("GET", "/v1/me", eve.keys.member, headers=headers).json()
    assert (me["session_id"], me["user"]) == (None, None)
    assert eve.call("POST", "/v1/keys", eve.keys.admin, json={}, headers=headers).status_code == 201


def test_csrf_token_of_another_session_is_refused(eve: Served) -> None:
    user = new_person(eve.ctx, "kim", {"default": Role.MEMBER})
    first, second = browser_of(eve, user), browser_of(eve, user)
    wrong = {"X-CSRF-Token": second.csrf_token}
    assert first.call("DELETE", "/v1/session", headers=wrong).status_code == 403
    assert first.call("GET", "/v1/session").json()["csrf_token"] == first.csrf_token
    gone = first.call("DELETE", "/v1/session")
    assert gone.status_code == 204
    assert cookie_of(gone)["giornata-session"]["max-age"] == "0"
    assert first.call("GET", "/v1/session").status_code == 401
    assert second.call("GET", "/v1/session").status_code == 200


def test_sign_in_by_a_form_of_another_site_is_no_json(eve: Served) -> None:
    response = eve.call("POST", "/v1/session", None, data=EVE)
    assert (response.status_code, response.json()["code"]) == (400, "invalid-input")


def test_session_id_is_renewed_at_each_sign_in(eve: Served) -> None:
    first = eve.call("POST", "/v1/session", None, json=EVE)
    (morsel,) = cookie_of(first).values()
    headers = {"Cookie": f"{morsel.key}={morsel.value}"}
    second = eve.call("POST", "/v1/session", None, json=EVE, headers=headers)
    assert second.json()["session"]["id"] != first.json()["session"]["id"]
    assert eve.call("GET", "/v1/session", None, headers=headers).status_code == 401


def test_delay_after_failures_is_told_in_retry_after(eve: Served) -> None:
    for _ in range(5):
        refused = eve.call("POST", "/v1/session", None, json=EVE | {"password": "wrong"})
        assert refused.status_code == 401
    response = eve.call("POST", "/v1/session", None, json=EVE)
    assert (response.status_code, response.json()["code"]) == (429, "sign-in-delayed")
    assert response.headers["retry-after"] == "1"
    assert eve.call("POST", "/v1/session", None, json=EVE | {"email": "kim@example.com"}).status_code == 401


def test_address_that_a_client_writes_is_believed_from_a_trusted_proxy_alone(eve: Served) -> None:
    def sessions_through(proxies: tuple[str, ...], forwarded: str) -> tuple[str, str]:
        app = create_app(eve.ctx, settings=replace(QUICK, trusted_proxies=proxies))
        server = HttpServer(app, listen("127.0.0.1", 0))
        server.start()
        try:
            headers = {"X-Forwarded-For": forwarded, "X-Forwarded-Proto": "https"}
            response = httpx.post(f"{server.url}/v1/session", json=EVE, headers=headers)
            return response.json()["session"]["address"], next(iter(cookie_of(response)))
        finally:
            server.stop()

    assert sessions_through((), "203.0.113.9") == ("127.0.0.1", "giornata-session")
    assert sessions_through(("192.0.2.0/24",), "203.0.113.9") == ("127.0.0.1", "giornata-session")
    trusted = sessions_through(("127.0.0.0/8",), "198.51.100.1, 203.0.113.9")
    assert trusted == ("203.0.113.9", "__Host-giornata-session")


def test_every_fault_of_a_sign_in_comes_at_once(eve: Served) -> None:
    response = eve.call("POST", "/v1/invitations/accept", None, json={"email": "no address", "role": "owner"})
    assert {fault["where"] for fault in response.json()["faults"]} == {"email", "password", "secret", "role"}
    assert PASSWORD not in eve.call("POST", "/v1/session", None, json=EVE | {"password": [PASSWORD]}).text


class SlowPasswords(PlainPasswords):
    """It counts how many are in it at once, and waits until a test lets it go."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.most_inside, self._lock = 0, 0, threading.Lock()
        self.go, self.begun = threading.Event(), threading.Semaphore(0)

    def verify(self, password_hash: str | None, password: str) -> bool:
        with self._lock:
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        self.begun.release()
        self.go.wait()
        with self._lock:
            self.inside -= 1
        return super().verify(password_hash, password)


def test_passwords_that_are_hashed_hold_nobody_up(eve: Served) -> None:
    slow = SlowPasswords()
    object.__setattr__(eve.ctx, "passwords", slow)
    answers: list[int] = []
    people = [{"email": f"person{number}@example.com", "password": PASSWORD} for number in range(6)]

    def enter(person: dict[str, str]) -> None:
        answers.append(httpx.post(f"{eve.url}/v1/session", json=person, timeout=60).status_code)

    waiting = [threading.Thread(target=enter, args=(person,)) for person in people]
    for each in waiting:
        each.start()
    for _ in range(2):
        slow.begun.acquire()
    assert eve.call("GET", "/v1/jobs", eve.keys.member).status_code == 200
    assert eve.call("GET", "/v1/me", eve.keys.admin).status_code == 200
    slow.go.set()
    for each in waiting:
        each.join()
    assert answers == [401] * 6
    assert slow.most_inside == 2


def test_password_is_hashed_with_argon2id_and_salted() -> None:
    passwords = Argon2Passwords(PasswordHasher(time_cost=1, memory_cost=64, parallelism=1))
    first, second = passwords.hash(PASSWORD), passwords.hash(PASSWORD)
    assert first != second
    assert first.startswith("$argon2id$")
    assert passwords.verify(first, PASSWORD)
    assert not passwords.verify(first, PASSWORD + "x")
    assert not passwords.verify(None, "the password of nobody")
    assert not passwords.verify("no hash", PASSWORD)
    assert Argon2Passwords().hash(PASSWORD).startswith("$argon2id$v=19$m=47104,t=1,p=1$")
