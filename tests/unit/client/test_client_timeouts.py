"""No call waits for ever, whatever the connection was made with (D55)."""

import socket

import httpx
import pytest

from giornata.client import Backoff, Client
from giornata.client.node import NodeClient
from giornata.domain.errors import Unavailable
from giornata.protocol.node.work import Claim, NodeInfo

NODE = NodeInfo(node_id="node_00000001", machine_id="m", name="n")
CLAIM = Claim(request_id="request-1", node=NODE, kinds=("train",))


def test_a_server_that_accepts_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            httpx.Client(base_url=url, timeout=None) as http,  # noqa: S113 - the point
            pytest.raises(Unavailable, match="ReadTimeout"),
        ):
            NodeClient(http, node_key="gk_x", timeout_s=0.2).claim(CLAIM)


def test_every_call_has_timeouts() -> None:
    seen: list[dict[str, float | None]] = []

    def note(request: httpx.Request) -> httpx.Response:
        seen.append(request.extensions["timeout"])
        raise httpx.ReadTimeout("said the script", request=request)

    http = httpx.Client(base_url="http://server.test", transport=httpx.MockTransport(note), timeout=None)  # noqa: S113
    sdk = Client("http://server.test", "gk_x", http=http, backoff=Backoff(retries=0))
    for call in (
        lambda: sdk.get_job("job_1"),
        lambda: sdk.cancel("job_1"),
        lambda: list(sdk.events("job_1", follow=True)),
        lambda: NodeClient(http, node_key="gk_x").claim(CLAIM),
    ):
        with pytest.raises(Unavailable):
            call()
    assert len(seen) == 4
    for timeouts in seen:
        assert None not in [timeouts[phase] for phase in ("connect", "read", "write", "pool")]
        assert max(value or 0 for value in timeouts.values()) <= 600
