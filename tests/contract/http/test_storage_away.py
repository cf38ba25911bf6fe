"""Storage that cannot be written, and a database that is away: said so that an operator understands, and no more."""

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from tests.contract.http.test_operation import answer
from tests.contract.http.test_refusals import lease
from tests.fixtures.contexts import ManualClock
from tests.fixtures.served import Served, serving

from giornata.api.app import create_app
from giornata.api.replies.problems import problem_of
from giornata.blobs.durable import away_is_unavailable
from giornata.blobs.s3_faults import translated
from giornata.control.monitoring import KEPT_MS, StorageCheck
from giornata.control.ports.store import Transaction
from giornata.domain.errors import Unavailable
from giornata.store.database.database import open_store

ADDRESS = "10.1.2.3"


@pytest.fixture
def gone(tmp_path: Path) -> Iterator[Served]:
    """A server whose folder of blobs is missing."""
    with serving(tmp_path) as served:
        (tmp_path / "blobs").rename(tmp_path / "elsewhere")
        yield served


def test_a_missing_folder_is_unavailable_and_says_no_path(gone: Served, tmp_path: Path) -> None:
    signed = gone.ctx.blobs.sign_put("a", size_bytes=1, sha256="0" * 64, expires_in_s=60)
    replies = [gone.http.put(signed.url, content=b"x")]
    files = [{"sha256": "1" * 64, "size_bytes": 64 * 2**20}]  # one that comes in parts
    replies.append(gone.call("POST", "/v1/uploads", gone.keys.member, json={"files": files}))
    for reply in replies:
        assert (reply.status_code, reply.json()["code"]) == (503, "unavailable"), reply.text
        assert reply.json()["detail"] == "storage cannot be written: no such file or directory"
        assert str(tmp_path) not in reply.text


def test_the_log_names_the_folder(gone: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    signed = gone.ctx.blobs.sign_put("a", size_bytes=1, sha256="0" * 64, expires_in_s=60)
    with caplog.at_level(logging.WARNING, "giornata.api"):
        gone.http.put(signed.url, content=b"x")
    assert str(tmp_path) in caplog.text


def test_server_with_missing_storage_folder_is_not_ready_but_healthy(gone: Served, tmp_path: Path) -> None:
    reply = gone.call("GET", "/readyz", None)
    assert (reply.status_code, reply.json()["ready"]) == (503, False)
    assert reply.json()["checks"] == {"store": "ok", "blobs": "storage cannot be written: no such file or directory"}
    assert gone.call("GET", "/healthz", None).status_code == 200


def test_server_is_ready_again_when_storage_folder_is_back(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        clock = ManualClock()
        check = StorageCheck(replace(served.ctx, clock=clock))
        check()
        folder = tmp_path / "blobs"
        folder.rename(tmp_path / "elsewhere")
        check()  # what was found holds for a while
        clock.advance_s(KEPT_MS / 1000)
        with pytest.raises(Unavailable, match="cannot be written"):
            check()
        (tmp_path / "elsewhere").rename(folder)
        clock.advance_s(KEPT_MS / 1000)
        check()
        assert list(served.ctx.blobs.list("readiness/")) == []


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EIO])
def test_os_error_on_storage_write_becomes_unavailable_without_path_in_public_message(number: int) -> None:
    with pytest.raises(Unavailable) as refused, away_is_unavailable("written"):
        raise OSError(number, os.strerror(number), "/srv/secret/place")
    assert refused.value.public == f"storage cannot be written: {os.strerror(number).lower()}"
    assert "/srv/secret/place" in str(refused.value)


def test_a_mistake_of_ours_stays_one() -> None:
    with pytest.raises(OSError, match="Invalid argument"), away_is_unavailable("written"):
        raise OSError(errno.EINVAL, "Invalid argument")


@pytest.mark.parametrize(
    "error",
    [
        EndpointConnectionError(endpoint_url=f"http://{ADDRESS}:9000"),
        ClientError({"Error": {"Code": "SlowDown", "Message": f"ask {ADDRESS}"}}, "PutObject"),
    ],
)
def test_s3_that_is_away_keeps_its_address_to_itself(error: Exception) -> None:
    with pytest.raises(Unavailable) as refused, translated("a"):
        raise error
    assert ADDRESS in str(refused.value)
    assert ADDRESS not in problem_of(refused.value).detail


def test_s3_that_refuses_the_server_makes_it_unready(served: Served) -> None:
    denied = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "PutObject")

    class ReadOnlyBlobs:
        def write(self, key: str, _chunks: object) -> None:
            with translated(key):
                raise denied

    status, body = answer(create_app(replace(served.ctx, blobs=ReadOnlyBlobs())), served, "/readyz")  # type: ignore[arg-type]
    assert (status, body["ready"]) == (503, False)
    assert "AccessDenied" in body["checks"]["blobs"]  # type: ignore[index]


class _PostgresThatIsDown:
    """The real store, at an address where nobody listens."""

    def __init__(self) -> None:
        self._store = open_store("postgresql://giornata:hush@127.0.0.1:1/giornata")

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        with self._store.read() as tx:
            yield tx

    begin = read


@pytest.mark.parametrize("path", ["/v1/jobs", "/readyz", "/metrics"])
def test_a_database_that_is_down_keeps_its_address_to_itself(served: Served, path: str) -> None:
    served.call("GET", "/v1/jobs", served.keys.member)
    ctx = replace(served.ctx, store=_PostgresThatIsDown())  # type: ignore[arg-type]
    http = served.http
    http.headers["Authorization"] = f"Bearer {served.keys.member}"
    status, body = answer(create_app(ctx), served, path)
    assert status == 503
    text = str(body)
    assert "the database cannot do it just now" in text
    assert not any(word in text for word in ("127.0.0.1", "port", "hush", "connection"))


def test_an_attempt_is_told_alike(gone: Served) -> None:
    mine = lease(gone)
    path = f"/v1/node/attempts/{mine['attempt_id']}/uploads"
    files = [{"sha256": "1" * 64, "size_bytes": 64 * 2**20}]
    assert gone.call("POST", path, mine["token"], json={"files": files}).json()["code"] == "unavailable"
