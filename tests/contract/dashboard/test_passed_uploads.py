"""Uploads that pass through the server: whose they are, how large, and that nothing else is stored."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.fixtures.dashboard import PROJECT, Furnished, furnished
from tests.fixtures.people import Browser, browser_of

from giornata.dashboard.picture_pages.uploads_page import MOST_AT_ONCE
from giornata.domain.files.transfers import SINGLE_PUT_BELOW_BYTES

HERE = f"/dashboard/projects/{PROJECT}/uploads"
CONTENT = b"\x89PNG\r\n\x1a\n and NaN \x00 bytes" * 4000


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Furnished]:
    with furnished(tmp_path) as made:
        yield made


@pytest.fixture
def member(home: Furnished) -> Browser:
    return browser_of(home.served, home.member, PROJECT)


def opened(browser: Browser, content: bytes, *, size_bytes: int | None = None) -> str:
    """The id of an upload that was opened for these bytes."""
    sha256 = hashlib.sha256(content).hexdigest()
    file = {"sha256": sha256, "size_bytes": size_bytes or len(content), "name": "fox.png"}
    reply = browser.call("POST", "/v1/uploads", json={"files": [file]}, headers={"X-Project": PROJECT})
    return str(reply.json()["items"][0]["upload_id"])


def completed(browser: Browser, upload_id: str) -> httpx.Response:
    return browser.call("POST", f"/v1/uploads/{upload_id}/complete", json={"etags": []})


def test_bytes_that_pass_through_are_a_blob_after_completion(home: Furnished, member: Browser) -> None:
    upload_id = opened(member, CONTENT)
    assert completed(member, upload_id).status_code == 409
    for _ in range(2):  # a repeat after a lost reply
        assert member.call("PUT", f"{HERE}/{upload_id}", content=CONTENT).status_code == 204
    assert completed(member, upload_id).json()["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert member.call("PUT", f"{HERE}/{upload_id}", content=b"others").status_code == 204, "nothing is written"
    reply = member.call("GET", f"/dashboard/projects/{PROJECT}/uploaded/{hashlib.sha256(CONTENT).hexdigest()}")
    assert reply.content == CONTENT


@pytest.mark.parametrize("wrong", [CONTENT[:-1], CONTENT + b"1", b"x" * len(CONTENT), b""])
def test_other_bytes_are_refused_and_none_are_stored(home: Furnished, member: Browser, wrong: bytes) -> None:
    upload_id = opened(member, CONTENT)
    assert member.call("PUT", f"{HERE}/{upload_id}", content=wrong).status_code in {409, 413}
    assert completed(member, upload_id).status_code == 409, "storage has none"
    assert member.call("PUT", f"{HERE}/{upload_id}", content=CONTENT).status_code == 204
    assert completed(member, upload_id).status_code == 200


def test_only_who_may_upload_passes_bytes_and_only_with_the_token(home: Furnished, member: Browser) -> None:
    upload_id = opened(member, CONTENT)
    for person in (home.viewer, home.stranger):
        reply = browser_of(home.served, person).call("PUT", f"{HERE}/{upload_id}", content=CONTENT)
        assert reply.status_code == 404
    for headers in ({"X-CSRF-Token": ""}, {"X-CSRF-Token": "0" * 64}):
        reply = member.call("PUT", f"{HERE}/{upload_id}", content=CONTENT, headers=headers)
        assert reply.status_code == 404
    key = home.served.keys.admin
    assert home.served.call("PUT", f"{HERE}/{upload_id}", key, content=CONTENT).status_code != 204
    assert member.call("PUT", f"{HERE}/up_none", content=CONTENT).status_code == 404
    owner_elsewhere = browser_of(home.served, home.stranger)
    elsewhere = f"/dashboard/projects/other/uploads/{upload_id}"
    assert owner_elsewhere.call("PUT", elsewhere, content=CONTENT).status_code == 404
    assert completed(member, upload_id).status_code == 409, "none of them stored anything"


def test_an_upload_in_parts_does_not_pass(home: Furnished, member: Browser) -> None:
    upload_id = opened(member, CONTENT, size_bytes=SINGLE_PUT_BELOW_BYTES)
    assert member.call("PUT", f"{HERE}/{upload_id}", content=CONTENT).status_code == 409
    assert home.served.app.state.upload_threads.total_tokens == MOST_AT_ONCE
