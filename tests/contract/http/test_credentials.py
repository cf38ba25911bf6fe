"""A credential opens what it is for and nothing else, however it is shown, cut, joined or spelled."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.contract.http.test_refusals import (
    ATTEMPT_ROUTES,
    NODE,
    UNKNOWN,
    USER_ROUTES,
    WEBHOOK,
    ask,
    is_problem,
    lease,
)
from tests.fixtures.people import browser_of, new_person
from tests.fixtures.served import Served, serving

from giornata.protocol.account.people import Role

SHOWN = ("Bearer", "X-API-Key", "cookie", "attempt")
OPENS = {"key": {"Bearer", "X-API-Key"}, "session": {"cookie"}, "attempt token": {"attempt"}}


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, dict[str, str]]]:
    """A served installation, and one credential of each kind."""
    with serving(tmp_path_factory.mktemp("installation")) as served:
        browser = browser_of(served, new_person(served.ctx, "ann", {"default": Role.MEMBER}))
        invitation = served.call("POST", "/v1/invitations", served.keys.admin, json={"role": "member"}).json()
        webhook = served.call("POST", "/v1/webhooks", served.keys.admin, json=WEBHOOK).json()
        held = lease(served)
        url = served.ctx.blobs.sign_get("default/x", expires_in_s=60).url
        (signature,) = parse_qs(urlsplit(url).query)["signature"]
        yield (
            served,
            {
                "key": served.keys.member,
                "session": browser.secret,
                "attempt token": held["token"],
                "attempt": held["attempt_id"],
                "CSRF token": browser.csrf_token,
                "invitation": invitation["secret"],
                "webhook secret": webhook["secret"],
                "signature": signature,
            },
        )


def status_of(served: Served, secret: str, shown: str, attempt_id: str) -> int:
    """The answer to a question that only the right credential may ask."""
    if shown == "attempt":
        path = f"/v1/node/attempts/{attempt_id}/heartbeat"
        return served.call("POST", path, secret, json={}).status_code
    headers = {
        "Bearer": {"Authorization": f"Bearer {secret}"},
        "X-API-Key": {"X-API-Key": secret},
        "cookie": {"Cookie": f"giornata-session={secret}"},
    }[shown]
    return served.call("GET", "/v1/me", None, headers=headers).status_code


@pytest.mark.parametrize("shown", SHOWN)
@pytest.mark.parametrize(
    "kind", ["key", "session", "attempt token", "attempt", "CSRF token", "invitation", "webhook secret", "signature"]
)
def test_credential_of_each_kind_opens_what_it_is_for_alone(
    installation: tuple[Served, dict[str, str]], kind: str, shown: str
) -> None:
    served, secrets = installation
    wanted = 200 if shown in OPENS.get(kind, set()) else 401
    assert status_of(served, secrets[kind], shown, secrets["attempt"]) == wanted


def test_token_of_an_attempt_opens_no_route_of_users_and_claims_nothing(
    installation: tuple[Served, dict[str, str]],
) -> None:
    served, secrets = installation
    for route, row in USER_ROUTES.items():
        assert is_problem(ask(served, route, secrets["attempt token"], UNKNOWN, row.body), 401, "unauthenticated"), (
            route
        )


@pytest.mark.parametrize("kind", ["key", "session", "attempt token"])
def test_credential_that_was_cut_widened_or_respelled_opens_nothing(
    installation: tuple[Served, dict[str, str]], kind: str
) -> None:
    served, secrets = installation
    (shown, *_) = sorted(OPENS[kind])
    secret = secrets[kind]
    altered = {
        *(secret[:-1], secret + "0", secret[:-1] + ("A" if secret[-1] != "A" else "B")),
        *(secret.upper(), secret.swapcase(), secret[::-1], secret[: len(secret) // 2], secret * 2),
        *(f"{secret}%00", f"{secret},{secret}", f"{secret} x"),
    } - {secret}
    statuses = {each: status_of(served, each, shown, secrets["attempt"]) for each in altered}
    assert set(statuses.values()) == {401}, statuses
    assert status_of(served, secret, shown, secrets["attempt"]) == 200


def test_attempt_token_with_the_id_of_another_attempt_is_refused(served: Served) -> None:
    first, second = lease(served, 1), lease(served, 2)
    widened = {
        first["token"].replace(first["attempt_id"], second["attempt_id"]),
        second["attempt_id"] + first["token"][len(first["attempt_id"]) :],
        f"{second['attempt_id']}.{first['token']}",
    }
    for token in widened:
        for route, body in ATTEMPT_ROUTES.items():
            reply = ask(served, route, token, {"attempt_id": second["attempt_id"], "upload_id": "u"}, body)
            assert is_problem(reply, 401, "unauthenticated"), route


def test_nodes_key_asks_for_work_and_nothing_else(served: Served) -> None:
    for route, row in USER_ROUTES.items():
        allowed = "/v1/node/" in route or "any" in row.needs
        reply = ask(served, route, served.keys.node, UNKNOWN, row.body)
        assert (reply.status_code not in {401, 403}) == allowed, (route, reply.text)


def test_stolen_key_of_a_projects_node_gets_no_job_of_another_project(served: Served, tmp_path: Path) -> None:
    served.call("POST", "/v1/jobs", served.keys.member, json={"kind": "x-count", "spec": {}, "priority": 100})
    for number in range(3):
        claim = {"request_id": f"request-{number}", "node": {**NODE, "node_id": f"node_0000000{number}"}}
        claim |= {"kinds": ["x-count"]}
        reply = served.call("POST", "/v1/node/claim", served.keys.other_node, json=claim).json()
        assert (reply["lease"], reply["reason"]) == (None, "empty-queue"), "not even that somebody's job waits"


def test_no_cache_keeps_a_reply_and_no_browser_guesses_its_type(installation: tuple[Served, dict[str, str]]) -> None:
    served, _ = installation
    for key in (served.keys.admin, None):
        for route, row in USER_ROUTES.items():
            headers = ask(served, route, key, UNKNOWN, row.body).headers
            assert "no-store" in headers["cache-control"], route
            assert headers["x-content-type-options"] == "nosniff", route
