"""A node whose messages have fields that its server has never heard of."""

from collections.abc import Iterator

import httpx
import pytest
from pydantic import Field
from tests.fixtures.served import Served, serving

from giornata.client.known_fields import KnownFields
from giornata.client.node import KNOWN_FOR_S, NodeClient
from giornata.client.trust import trusted
from giornata.domain.errors import InvalidInput
from giornata.protocol.model import Message
from giornata.protocol.node.work import Claim, CompleteAttempt, Heartbeat, NodeInfo

KINDS = ("x-count",)


class GpuOfTomorrow(Message):
    """A part of a message that no server of today knows."""

    watts: int = 300


class NodeOfTomorrow(NodeInfo):
    """A node with fields of a later version, which have defaults as every new field has."""

    gpus: tuple[GpuOfTomorrow, ...] = (GpuOfTomorrow(),)


class ClaimOfTomorrow(Claim):
    """A claim with a field of a later version, and of a node of that version."""

    node: NodeOfTomorrow
    region: str = "nowhere"


class BeatOfTomorrow(Heartbeat):
    """A heartbeat with a field of a later version."""

    temperature_c: int = 70


class CompletionOfTomorrow(CompleteAttempt):
    """A report with a field of a later version."""

    joules: int = Field(0, ge=0)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture
def asked() -> list[str]:
    """The paths that the node has asked for."""
    return []


@pytest.fixture
def node(served: Served, asked: list[str]) -> Iterator[NodeClient]:
    hooks = {"request": [lambda request: asked.append(request.url.path)]}
    with httpx.Client(base_url=served.url, verify=trusted(), event_hooks=hooks) as http:
        yield NodeClient(http, node_key=served.keys.node)


def claim(number: int) -> Claim:
    info = NodeInfo(node_id=f"node_0000000{number}", machine_id=f"m-{number}", name="n")
    return Claim(request_id=f"request-{number}", node=info, kinds=KINDS)


def claim_of_tomorrow(number: int, **fields: object) -> ClaimOfTomorrow:
    info = NodeOfTomorrow(node_id=f"node_0000000{number}", machine_id=f"m-{number}", name="n")
    return ClaimOfTomorrow(request_id=f"request-{number}", node=info, kinds=KINDS, **fields)


def test_a_newer_node_claims_beats_and_completes_on_an_older_server(
    served: Served, node: NodeClient, asked: list[str]
) -> None:
    job = served.client().submit({}, kind="x-count")
    lease = node.claim(claim_of_tomorrow(1)).lease
    assert lease is not None
    assert lease.job_id == job.id
    assert asked == ["/v1/node/claim", "/openapi.json", "/v1/node/claim"]
    node.heartbeat(lease, BeatOfTomorrow(step=3))
    assert len(asked) == 4, "what the server knows is asked for once"
    node.complete(lease, CompletionOfTomorrow(step=5))
    assert served.client().get_job(job.id).state == "succeeded"


def test_a_fault_of_a_field_that_the_server_knows_is_raised(node: NodeClient, asked: list[str]) -> None:
    wrong = claim(2).model_copy(update={"kinds": ()})
    with pytest.raises(InvalidInput) as raised:
        node.claim(wrong)
    assert [fault.where for fault in raised.value.faults] == ["kinds"]
    assert asked == ["/v1/node/claim", "/openapi.json"], "nothing was to be left out"


def test_a_node_of_the_servers_version_asks_for_no_document(node: NodeClient, asked: list[str]) -> None:
    node.claim(
        Claim(request_id="request-3", node=NodeInfo(node_id="node_00000003", machine_id="m", name="n"), kinds=KINDS)
    )
    assert asked == ["/v1/node/claim"]


def test_a_server_that_was_upgraded_gets_all_fields_again_after_a_while(served: Served) -> None:
    now_s, bodies = [0.0], []
    hooks = {"request": [lambda request: bodies.append(request.content)]}
    with httpx.Client(base_url=served.url, verify=trusted(), event_hooks=hooks) as http:
        node = NodeClient(http, node_key=served.keys.node, monotonic_s=lambda: now_s[0])
        for number, moment_s in enumerate((0.0, KNOWN_FOR_S - 1, KNOWN_FOR_S + 1), start=6):
            now_s[0] = moment_s
            node.claim(claim_of_tomorrow(number))
    sent = [b"region" in body for body in bodies if body]
    assert sent == [True, False, False, True, False]


def test_a_server_that_does_not_tell_its_fields_is_believed() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/openapi.json":
            return httpx.Response(404, text="a proxy's page")
        fault = {"where": "region", "message": "there is no such field", "hint": ""}
        return httpx.Response(400, json={"code": "invalid-input", "faults": [fault]})

    with (
        httpx.Client(base_url="http://server", transport=httpx.MockTransport(answer)) as http,
        pytest.raises(InvalidInput, match="region: there is no such field"),
    ):
        NodeClient(http, node_key="gk_0").claim(claim_of_tomorrow(1))


@pytest.fixture(scope="module")
def known(served: Served) -> KnownFields:
    return KnownFields(served.http.get(f"{served.url}/openapi.json").json())


def test_fields_within_lists_and_within_what_may_be_null_are_left_out() -> None:
    part = {"type": "object", "additionalProperties": False, "properties": {"a": {"type": "integer"}}}
    either = {"anyOf": [{"$ref": "#/components/schemas/Part"}, {"type": "null"}]}
    whole = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"parts": {"type": "array", "items": {"$ref": "#/components/schemas/Part"}}, "one": either},
    }
    body = {"content": {"application/json": {"schema": whole}}}
    document = {
        "paths": {"/v1/things/{id}": {"put": {"requestBody": body}}},
        "components": {"schemas": {"Part": part}},
    }
    given = {"parts": [{"a": 1, "b": 2}], "one": {"a": 3, "c": 4}, "new": 5}
    assert KnownFields(document).pruned("PUT", "/v1/things/7?x=1", given) == {"parts": [{"a": 1}], "one": {"a": 3}}
    assert KnownFields(document).pruned("PUT", "/v1/things/7", {"one": None}) == {"one": None}


@pytest.mark.parametrize("path", ["/v1/node/nothing", "/v1/nothing"])
def test_a_route_that_the_server_lacks_takes_all(path: str, known: KnownFields) -> None:
    assert known.pruned("POST", path, {"any": 1}) == {"any": 1}


def test_maps_with_names_of_ones_own_are_kept(known: KnownFields) -> None:
    given = claim_of_tomorrow(4).model_dump(mode="json")
    given["node"]["versions"] = {"torch": "2.9", "anything": "1"}
    pruned = known.pruned("POST", "/v1/node/claim", given)
    assert pruned["node"]["versions"] == given["node"]["versions"]
    assert "gpus" not in pruned["node"]
    assert "region" not in pruned


def test_every_message_of_a_node_is_known_whole_to_a_server_of_its_version(known: KnownFields) -> None:
    claim = Claim(
        request_id="request-5", node=NodeInfo(node_id="node_00000005", machine_id="m", name="n"), kinds=KINDS
    )
    body = claim.model_dump(mode="json")
    assert known.pruned("POST", "/v1/node/claim", body) == body
    beat = Heartbeat(step=1).model_dump(mode="json")
    assert known.pruned("POST", "/v1/node/attempts/att_1/heartbeat", beat) == beat
