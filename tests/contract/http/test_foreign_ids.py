"""Existence does not leak: an id of another project is answered as one that nobody has.

`test_refusals.py` compares statuses and bodies on every route. Here streams are asked, too, and the statements are
counted that the server sends to its database: another number would show in the time of the answer.
"""

import hashlib
import json
import re
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
from tests.fixtures.served import Served, a_dataset

from giornata.domain.accounts.notifications import DeliveryState
from giornata.protocol.account.people import Role
from giornata.store import schema

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


def test_foreign_job_of_a_comparison_is_answered_like_one_that_nobody_has(
    served: Served, tmp_path: Path, statements: list[str]
) -> None:
    def trained(key: str, folder: Path) -> str:
        dataset = a_dataset(served.client(key), folder).id
        job = {"kind": "train", "spec": put_in(TRAIN, {"dataset": dataset})}
        return str(served.call("POST", "/v1/jobs", key, json=job).json()["id"])

    (tmp_path / "other").mkdir()
    mine, theirs = (
        trained(served.keys.other_admin, tmp_path / "other"),
        trained(served.keys.admin, tmp_path),
    )
    assert served.call("GET", f"/v1/jobs:compare?job={theirs}", served.keys.admin).status_code == 200
    replies, counts = [], []
    for job_id in ("job_none", theirs, "job_none"):  # the first fills what the server remembers
        statements.clear()
        reply = served.call("GET", f"/v1/jobs:compare?job={mine}&job={job_id}", served.keys.other_admin)
        assert is_problem(reply, 404, "not-found")
        replies.append(reply.json()["detail"].replace(job_id, "JOB"))
        counts.append(len(statements))
    assert len(set(replies)) == 1
    assert counts[1] == counts[2]


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


# ---- ids in bodies

TRAIN = {"model": "some/model", "dataset": "{dataset}", "instance_prompt": "a", "max_train_steps": 1}
DRAW = {"model": "some/model", "prompt": "a fox"}
LORA = DRAW | {"loras": [{"name": "{job}"}]}
PAINTED = DRAW | {"image": "{sha256}"}
EDGES = {"model": {"name": "some/edges"}}
CHOSEN = {"pictures": [{"order_id": "{order}", "number": 0}]}
ITEMS = [{"name": f"{number}.png", "sha256": "{sha256}"} for number in range(3)]
IN_BODIES: list[tuple[str, dict[str, Any]]] = [
    ("POST /v1/pictures:mark", {**CHOSEN, "starred": True}),
    ("POST /v1/pictures:delete", CHOSEN),
    ("POST /v1/pictures:archive", CHOSEN),
    ("POST /v1/export/files", {"sha256s": ["{sha256}"]}),
    ("POST /v1/datasets", {"items": ITEMS}),
    ("POST /v1/jobs", {"kind": "train", "spec": TRAIN}),
    ("POST /v1/jobs", {"kind": "train", "spec": TRAIN | {"init_lora": "{sha256}"}}),
    ("POST /v1/jobs:estimate", {"kind": "train", "spec": TRAIN}),
    ("POST /v1/jobs", {"kind": "generate", "spec": LORA}),
    ("POST /v1/generations", LORA),
    ("POST /v1/generations", PAINTED),
    ("POST /v1/jobs", {"kind": "generate", "spec": DRAW | {"image": "{sha256}", "mask": "{sha256}"}}),
    ("POST /v1/jobs", {"kind": "generate", "spec": DRAW | {"controlnets": [{**EDGES, "image": "{sha256}"}]}}),
    ("POST /v1/jobs", {"kind": "preprocess", "spec": {"annotator": "canny", "images": ["{sha256}"]}}),
    ("POST /v1/jobs:estimate", {"kind": "generate", "spec": PAINTED}),
    ("POST /v1/sweeps", {"spec": TRAIN, "changes": [{"rank": 8}, {"rank": 16}]}),
    ("POST /v1/import/jobs", {**USER_ROUTES["POST /v1/import/jobs"].body, "retry_of": "{job}"}),
    ("POST /v1/models", {"name": "theirs", "reference": "{job}"}),
    ("POST /v1/models", {"name": "theirs", "sha256": "{sha256}"}),
]
NOBODYS = {"dataset": "ds_none", "job": "job_none", "order": "job_nothing", "sha256": "e" * 64}


def put_in(body: Any, ids: dict[str, str]) -> Any:
    """The body with these ids."""
    text = json.dumps(body)
    for name, value in ids.items():
        text = text.replace(f"{{{name}}}", value)
    return json.loads(text)


def without(text: str, ids: dict[str, str]) -> str:
    """An answer without the ids that were sent and the request's own."""
    for name, value in ids.items():
        text = text.replace(value, name)
    return re.sub(r'"request_id":"[^"]*"', "", text)


@pytest.mark.parametrize(("route", "body"), IN_BODIES, ids=[f"{route}-{n}" for n, (route, _) in enumerate(IN_BODIES)])
def test_foreign_id_in_a_body_is_answered_like_one_that_nobody_has(
    served: Served, tmp_path: Path, route: str, body: dict[str, Any]
) -> None:
    own = own_things(served, tmp_path)
    order = served.call("POST", "/v1/jobs", served.keys.admin, json={"kind": "generate", "spec": DRAW}).json()["id"]
    sha256 = hashlib.sha256((tmp_path / "a.png").read_bytes()).hexdigest()
    job = {"kind": "train", "spec": put_in(TRAIN, {"dataset": own["dataset_id"]})}
    trained = served.call("POST", "/v1/jobs", served.keys.admin, json=job).json()["id"]
    theirs = {"dataset": own["dataset_id"], "job": trained, "order": order, "sha256": sha256}
    answers = [ask(served, route, served.keys.other_admin, {}, put_in(body, ids)) for ids in (theirs, NOBODYS)]
    said = [without(reply.text, ids) for reply, ids in zip(answers, (theirs, NOBODYS), strict=True)]
    assert answers[0].status_code == answers[1].status_code, said
    assert said[0] == said[1]
    own_answer = ask(served, route, served.keys.admin, {}, put_in(body, theirs))
    assert own_answer.text != answers[0].text, "the row names something that its owner has"


def ended_delivery(served: Served, key: str) -> tuple[str, int]:
    """A webhook of the key's project, and a delivery of it that its target refused."""
    webhook = served.call("POST", "/v1/webhooks", key, json={"target": "https://example.com/hook"}).json()["id"]
    delivery = served.call("POST", f"/v1/webhooks/{webhook}/test", key).json()["id"]
    table = schema.webhook_deliveries
    ended = {"state": DeliveryState.DEAD, "ended_at_ms": served.ctx.clock.now_ms()}
    with served.ctx.store.begin() as tx:
        tx.connection.execute(sa.update(table).where(table.c.id == delivery).values(ended))
    return webhook, delivery


def test_foreign_delivery_is_replayed_as_little_as_one_that_nobody_has(served: Served) -> None:
    theirs, delivery = ended_delivery(served, served.keys.admin)
    mine, _ = ended_delivery(served, served.keys.other_admin)

    def replayed(key: str, webhook: str, delivery_id: int) -> Any:
        reply = served.call("POST", f"/v1/webhooks/{webhook}/replay", key, json={"delivery_ids": [delivery_id]})
        return reply.status_code, reply.json()

    answers = [replayed(served.keys.other_admin, mine, each) for each in (delivery, 10**9)]
    assert answers[0] == answers[1] == (200, {"replayed": 0})
    assert replayed(served.keys.admin, theirs, delivery) == (200, {"replayed": 1}), "it stands as it was"
