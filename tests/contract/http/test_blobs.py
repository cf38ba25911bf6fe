"""Signed URLs that the server itself answers."""

import hashlib

import httpx
import pytest
from tests.fixtures.served import Served

BODY = b"0123456789" * 1000
SHA = hashlib.sha256(BODY).hexdigest()


def ticket(served: Served, body: bytes = BODY) -> dict[str, dict[str, str]]:
    files = [{"sha256": hashlib.sha256(body).hexdigest(), "size_bytes": len(body)}]
    reply = served.call("POST", "/v1/uploads", served.keys.member, json={"files": files})
    return dict(reply.json()["items"][0])


def put(served: Served, asked: dict[str, dict[str, str]], body: bytes) -> httpx.Response:
    headers = {**asked["put"]["headers"], "Content-Length": str(len(body))}
    return served.http.put(asked["put"]["url"], content=body, headers=headers)


def stored_url(served: Served) -> str:
    asked = ticket(served)
    assert put(served, asked, BODY).status_code == 200
    done = served.call("POST", f"/v1/uploads/{asked['upload_id']}/complete", served.keys.member, json={})
    assert done.json() == {"sha256": SHA, "size_bytes": len(BODY)}
    with served.ctx.store.read() as tx:
        key = tx.uploads.blobs("default", [SHA])[SHA].key
    return served.ctx.blobs.sign_get(key, expires_in_s=60, filename="größe.bin", media_type="text/html").url


def test_bytes_come_back_whole_and_in_ranges(served: Served) -> None:
    url = stored_url(served)
    whole = served.http.get(url)
    assert whole.content == BODY
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert "filename*=UTF-8''gr%C3%B6%C3%9Fe.bin" in whole.headers["content-disposition"]
    part = served.http.get(url, headers={"Range": "bytes=5-14"})
    assert (part.status_code, part.content) == (206, BODY[5:15])
    assert part.headers["content-range"] == f"bytes 5-14/{len(BODY)}"
    rest = served.http.get(url, headers={"Range": f"bytes={len(BODY) - 3}-"})
    assert rest.content == BODY[-3:]
    assert served.http.get(url, headers={"Range": f"bytes={len(BODY)}-"}).status_code == 416


def test_the_same_bytes_need_no_second_upload(served: Served) -> None:
    stored_url(served)
    assert ticket(served)["exists"]


@pytest.mark.parametrize("change", [lambda url: url[:-1] + "x", lambda url: url.replace("expires=", "expires=9")])
def test_a_url_that_was_changed(served: Served, change: object) -> None:
    response = served.http.get(change(stored_url(served)))  # type: ignore[operator]
    assert (response.status_code, response.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (BODY[:-1] + b"x", 409, "blob-mismatch"),
        (BODY[:-1], None, None),
        (BODY + b"x", None, None),
        (BODY * 2000, None, None),
    ],
)
def test_upload_of_other_bytes_than_signed_is_refused(
    served: Served, body: bytes, status: int | None, code: str | None
) -> None:
    asked = ticket(served)
    response = put(served, asked, body)
    assert response.headers["content-type"] == "application/problem+json", response.text
    assert response.status_code in ({status} if status else {400, 403, 409, 413})
    assert code is None or response.json()["code"] == code
    done = served.call("POST", f"/v1/uploads/{asked['upload_id']}/complete", served.keys.member, json={})
    assert (done.status_code, done.json()["code"]) == (409, "blob-missing")


def test_a_large_body_is_not_held_to_the_bound_of_json(served: Served) -> None:
    body = b"x" * (3 * 2**20)
    asked = ticket(served, body)
    response = put(served, asked, body)
    assert response.status_code == 200, response.text
    assert response.headers["etag"].startswith('"')


def test_a_client_that_goes_away_leaves_nothing(served: Served) -> None:
    asked = ticket(served)

    def half() -> object:
        yield BODY[:100]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        served.http.put(
            asked["put"]["url"],
            content=half(),
            headers={"Content-Length": str(len(BODY))},  # type: ignore[arg-type]
        )
    done = served.call("POST", f"/v1/uploads/{asked['upload_id']}/complete", served.keys.member, json={})
    assert done.json()["code"] == "blob-missing"
