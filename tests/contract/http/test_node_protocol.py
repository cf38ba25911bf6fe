"""Nodes and servers of other versions of the protocol: who is let in, and what the others are told."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from tests.contract.http.test_refusals import NODE, is_problem
from tests.fixtures.served import Served

from giornata.client.node import NodeClient
from giornata.client.trust import trusted
from giornata.domain.errors import ProtocolMismatch
from giornata.domain.protocol_versions import SpokenVersions, versions_of
from giornata.protocol import PROTOCOL_HEADER, SPOKEN, VERSION
from giornata.protocol.node.node_checks import NodeChecks
from giornata.protocol.node.work import Claim, NodeInfo

CLAIM = {"request_id": "request-1", "node": NODE, "kinds": ["x-count"]}
CALLS = {
    "POST /v1/node/claim": CLAIM,
    "POST /v1/node/checks": {"node": NODE},
    "GET /v1/node/policy": None,
}
TOMORROW = SpokenVersions(oldest=VERSION + 1, newest=VERSION + 2)


def ask(served: Served, call: str, said: str | None) -> httpx.Response:
    method, path = call.split(" ")
    more = {} if CALLS[call] is None else {"json": CALLS[call]}
    headers = {} if said is None else {PROTOCOL_HEADER: said}
    return served.call(method, path, served.keys.node, headers=headers, **more)


@contextmanager
def node_of(served: Served, spoken: SpokenVersions) -> Iterator[NodeClient]:
    with httpx.Client(base_url=served.url, verify=trusted()) as http:
        yield NodeClient(http, node_key=served.keys.node, spoken=spoken)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("said", [None, str(SPOKEN), f"{VERSION}-{VERSION + 1}"])
def test_node_with_a_common_version_is_let_in_and_told_the_version(served: Served, call: str, said: str) -> None:
    reply = ask(served, call, said)
    assert reply.is_success, reply.text
    assert reply.headers[PROTOCOL_HEADER] == str(VERSION)


@pytest.mark.parametrize("call", CALLS)
def test_node_that_is_too_new_is_refused_with_what_to_do(served: Served, call: str) -> None:
    reply = ask(served, call, str(TOMORROW))
    assert is_problem(reply, 409, "protocol-mismatch")
    assert "upgrade the server" in reply.json()["detail"]
    assert list(served.client(served.keys.admin).nodes()) == []


@pytest.mark.parametrize("said", ["", "0", "x", "1-2-3", "1;2"])
def test_version_that_cannot_be_read_is_a_fault_of_the_header(served: Served, said: str) -> None:
    reply = ask(served, "POST /v1/node/claim", said)
    assert is_problem(reply, 400, "invalid-input")
    assert PROTOCOL_HEADER.lower() in reply.json()["faults"][0]["where"].lower()


def test_node_client_of_this_version_agrees_with_the_server(served: Served) -> None:
    with node_of(served, SPOKEN) as node:
        assert node.claim(Claim.model_validate(CLAIM)).reason == "empty-queue"
        assert not node.report_checks(NodeChecks(node=NodeInfo(**NODE))).drain
        assert node.policy("local").at is not None


def test_node_client_that_is_too_new_raises_what_the_server_says(served: Served) -> None:
    with node_of(served, TOMORROW) as node, pytest.raises(ProtocolMismatch, match="too new"):
        node.claim(Claim.model_validate(CLAIM))


def test_server_that_names_no_version_is_too_old_for_a_node_that_speaks_version_one_no_more() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={}))
    with httpx.Client(base_url="http://server", transport=transport) as http:
        NodeClient(http, node_key="k", spoken=versions_of("1-2")).policy("local")
        with pytest.raises(ProtocolMismatch, match=r"server speaks version 1 .* this node 2-3; upgrade the server"):
            NodeClient(http, node_key="k", spoken=versions_of("2-3")).policy("local")
