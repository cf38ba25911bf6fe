"""Existence does not leak: an id of another project is answered as one that nobody has.

`test_refusals.py` compares statuses and bodies on every route. Here streams are asked, too, and the statements are
counted that the server sends to its database: another number would show in the time of the answer.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from tests.contract.http.test_refusals import (
    FOREIGN,
    UNKNOWN,
    USER_ROUTES,
    VERBS,
    ask,
    filled,
    is_problem,
    own_things,
    query_of,
)
from tests.fixtures.people import browser_of, new_person
from tests.fixtures.served import Served

from giornata.protocol.account.people import Role

STREAM = {"Accept": "text/event-stream"}
WORDS = {Role.VIEWER: VERBS[:1], Role.MEMBER: VERBS, Role.OWNER: (*VERBS, "admin")}


@pytest.fixture
def statements(served: Served) -> Iterator[list[str]]:
    """Every statement that the server sends to its database from now on."""
    sent: list[str] = []
    store: Any = served.ctx.store

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    for engine in {store._writer, store._reader}:
        sa.event.listen(engine, "before_cursor_execute", note)
    yield sent
    for engine in {store._writer, store._reader}:
        sa.event.remove(engine, "before_cursor_execute", note)


def test_foreign_id_takes_as_many_statements_as_one_that_nobody_has(
    served: Served, tmp_path: Path, statements: list[str]
) -> None:
    own = own_things(served, tmp_path)
    different = {}
    for route in FOREIGN:
        counts = []
        for ids in (UNKNOWN, own, UNKNOWN):  # the first fills what the server remembers
            statements.clear()
            assert ask(served, route, served.keys.other_admin, ids, USER_ROUTES[route].body).status_code == 404
            counts.append(list(statements))
        if counts[1] != counts[2]:
            different[route] = counts[1:]
    assert different == {}


def streams(served: Served) -> list[str]:
    """Every route that answers with a stream of events, by the OpenAPI document."""
    document = served.http.get(f"{served.url}/openapi.json").json()
    return [
        f"{method.upper()} {path}"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if "text/event-stream" in operation["responses"].get("200", {}).get("content", {})
    ]


def test_stream_of_another_project_is_refused_to_every_role_like_one_of_nothing(
    served: Served, tmp_path: Path
) -> None:
    own, found = own_things(served, tmp_path), streams(served)
    assert {"GET /v1/jobs/{job_id}/events", "GET /v1/jobs/{job_id}/pictures"} <= set(found)
    people = {role: browser_of(served, new_person(served.ctx, role, {"other": role})) for role in Role}
    for route in found:
        method, path = route.split(" ")
        replies: list[httpx.Response] = []
        for ids in (own, UNKNOWN):
            where = filled(path, ids) + query_of(route)
            replies.append(served.call(method, where, served.keys.other_admin, headers=STREAM))
            replies += [
                people[role].call(method, where, headers=STREAM)
                for role in Role
                if USER_ROUTES[route].takes((*WORDS[role], "person"))
            ]
            assert is_problem(served.call(method, where, None, headers=STREAM), 401, "unauthenticated")
        assert len(replies) >= 4
        assert all(is_problem(reply, 404, "not-found") for reply in replies)
        said = {reply.json()["detail"].replace(own["job_id"], UNKNOWN["job_id"]) for reply in replies}
        assert len(said) == 1, route


def test_list_of_a_stranger_takes_as_many_statements_whatever_others_have(
    served: Served, tmp_path: Path, statements: list[str]
) -> None:
    lists = [route for route, row in USER_ROUTES.items() if route.startswith("GET ") and "{" not in route]
    lists = [route for route in lists if USER_ROUTES[route].takes((*VERBS, "admin"))]

    def counted() -> dict[str, list[str]]:
        found = {}
        for route in lists:
            for _ in range(2):
                statements.clear()
                reply = ask(served, route, served.keys.other_admin, {}, None)
                assert reply.status_code in {200, 404}, (route, reply.text)
            found[route] = list(statements)
        return found

    before = counted()
    own_things(served, tmp_path)
    assert counted() == before
    assert len(lists) > 8
