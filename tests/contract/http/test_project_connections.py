"""How many connections a project may hold open, and how many the server takes of everybody."""

import contextlib
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from tests.contract.http.test_connection_quota import claim, following, until
from tests.contract.http.test_streams import STREAM
from tests.fixtures.served import Served, serving
from tests.fixtures.users import Bytes

from giornata.api.settings import ApiSettings
from giornata.cli.operate.open_files import OWN_FILES, OpenFiles, connections_of
from giornata.protocol.uploads import UploadRequest

MOST = 2
SMALL = Bytes(b"0" * 1000)
LARGE_BYTES = 2**25  # more than the kernel holds of a connection
LONG_S = 20.0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    settings = ApiSettings(
        stream_poll_s=0.02,
        keep_alive_s=0.05,
        claim_poll_s=0.05,
        max_connections_per_project=MOST,
        max_connections=16,
    )
    with serving(tmp_path, settings) as running:
        yield running


def refusal(response: httpx.Response) -> tuple[object, ...]:
    """The limit and the use that a refusal names."""
    document = response.json()
    assert (response.status_code, document["code"], document["retryable"]) == (429, "too-many", True)
    assert int(response.headers["retry-after"]) > 0
    (fault,) = document["faults"]
    assert fault["where"] == "connections"
    assert "close one, or try later" in fault["hint"]
    assert f"this project has {MOST} connections open on this server, of {MOST}" in document["detail"]
    (quota,) = document["quotas"]
    return quota["quota"], quota["limit"], quota["used"]


def test_project_has_so_many_connections_whatever_its_keys_and_whatever_they_are_for(served: Served) -> None:
    keys = served.keys
    job = served.client(keys.other_admin).submit({"steps": 5}, kind="x-count")
    body = UploadRequest(files=(SMALL.file,)).model_dump()
    (ticket,) = served.call("POST", "/v1/uploads", keys.other_admin, json=body).json()["items"]
    put = ticket["put"]
    full = ("max_connections_per_project", MOST, MOST)
    with following(served, job.id, key=keys.other_admin), following(served, job.id, "logs", key=keys.other_admin):
        stream = served.call("GET", f"/v1/jobs/{job.id}/events", keys.other_admin, headers=STREAM)
        assert refusal(stream) == full
        assert refusal(claim(served, 1, wait_s=LONG_S, key=keys.other_node)) == full, "its own node waits"
        assert refusal(served.http.put(put["url"], headers=put["headers"], content=SMALL.data)) == full
        forged = served.http.put(f"{put['url']}0", headers=put["headers"], content=SMALL.data)
        assert forged.status_code == 403, "without a signature nobody hears of the project"
        assert claim(served, 1, wait_s=0, key=keys.other_node).status_code == 200, "what does not wait needs no place"
        own = served.client(keys.admin).submit({"steps": 5}, kind="x-count")
        with contextlib.ExitStack() as held:
            for _ in range(MOST + 1):  # the operator's project has no bound
                held.enter_context(following(served, own.id, key=keys.admin))
    until(served, lambda: not served.app.state.project_connections._quota._taken)
    assert served.http.put(put["url"], headers=put["headers"], content=SMALL.data).status_code == 200
    with following(served, job.id, key=keys.other_admin):
        pass


def test_slow_reader_of_a_file_holds_a_place_until_it_leaves(served: Served, tmp_path: Path) -> None:
    client = served.client(served.keys.other_admin)
    path = tmp_path / "large"
    path.write_bytes(b"0" * LARGE_BYTES)
    (file,) = client.upload_files([path])
    (found,) = client.export_files([file.sha256])
    parts = urlsplit(found.request.url)
    readers = []
    for _ in range(MOST):
        reader = socket.create_connection((parts.hostname, parts.port))
        reader.sendall(f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        assert reader.recv(16).startswith(b"HTTP/1.1 200")  # and no more
        readers.append(reader)
    assert refusal(served.http.get(found.request.url)) == ("max_connections_per_project", MOST, MOST)
    for reader in readers:
        reader.close()
    until(served, lambda: not served.app.state.project_connections._quota._taken)
    assert len(served.http.get(found.request.url).content) == LARGE_BYTES


def test_server_takes_so_many_connections_and_tells_others_that_it_is_full(served: Served) -> None:
    parts = urlsplit(served.url)
    silent = [socket.create_connection((parts.hostname, parts.port)) for _ in range(16)]

    def full() -> bool:
        with httpx.Client(base_url=served.url, timeout=10) as fresh, contextlib.suppress(httpx.TransportError):
            reply = fresh.get("/healthz")
            if reply.status_code == 503:
                assert (reply.json()["code"], reply.json()["retryable"]) == ("unavailable", True)
                assert reply.headers["retry-after"] == "5"
                return True
        return False

    assert any(full() for _ in range(50))
    for each in silent:
        each.close()
    assert any(not full() for _ in range(50))


@pytest.mark.parametrize(
    ("soft", "hard", "raised_to", "taken"),
    [
        (100_000, 100_000, None, 1000),
        (256, 100_000, 1000 + OWN_FILES, 1000),
        (256, 1024, 1024, 1024 - OWN_FILES),
        (256, 256, None, 16),
    ],
)
def test_soft_limit_of_open_files_is_raised_and_a_low_hard_one_lowers_the_bound(
    soft: int, hard: int, raised_to: int | None, taken: int, caplog: pytest.LogCaptureFixture
) -> None:
    raised: list[int] = []
    with caplog.at_level(logging.WARNING, "giornata.limits"):
        found = connections_of(1000, OpenFiles(soft=soft, hard=hard, raise_to=raised.append))
    assert (found, raised) == (taken, [] if raised_to is None else [raised_to])
    assert ("LimitNOFILE=1512" in caplog.text) is (taken < 1000)
