"""Bodies that are small on the wire and large once they are read."""

import gzip

import httpx
import pytest
from tests.contract.http.test_refusals import is_problem
from tests.fixtures.served import Served

MIB = 2**20
DEEP = {
    "lists": b"[" * (MIB - 1),
    "objects": b'{"a":' * (MIB // 5 - 1),
    "a spec": b'{"kind": "x-count", "spec": {"a": ' + b"[" * 400_000 + b"]" * 400_000 + b"}}",
}
ROUTES = ("/v1/jobs", "/v1/jobs:estimate", "/v1/uploads", "/v1/generations", "/v1/session")


def post(served: Served, path: str, body: bytes, **headers: str) -> httpx.Response:
    return served.call(
        "POST", path, served.keys.member, content=body, headers={"Content-Type": "application/json"} | headers
    )


@pytest.mark.parametrize("body", DEEP.values(), ids=DEEP)
def test_json_that_is_nested_without_end_is_a_fault(standing: Served, body: bytes) -> None:
    for path in ROUTES:
        assert is_problem(post(standing, path, body), 400, "invalid-input"), path


def test_compressed_body_is_not_unpacked(standing: Served) -> None:
    bomb = gzip.compress(b" " * (64 * MIB) + b"{}")
    assert len(bomb) < MIB
    for path in ROUTES:
        reply = post(standing, path, bomb, **{"Content-Encoding": "gzip"})
        assert is_problem(reply, 400, "invalid-input"), path


def test_number_of_a_million_digits_is_a_fault(standing: Served) -> None:
    body = b'{"kind": "x-count", "spec": {"a": ' + b"9" * (MIB - 100) + b"}}"
    assert is_problem(post(standing, "/v1/jobs", body), 400, "invalid-input")


def test_many_equal_fields_count_as_one_body(standing: Served) -> None:
    body = b"{" + b'"kind":"x-count",' * 50_000 + b'"spec":{}}'
    assert post(standing, "/v1/jobs", body).status_code in {201, 400}
