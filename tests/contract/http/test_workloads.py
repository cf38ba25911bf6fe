"""Nodes that send a provider's token instead of a key, against the real API."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.fixtures.salad_imds import ORGANIZATION_ID, SaladKeys, SaladWorkload
from tests.fixtures.served import Served, serving

from giornata.client.node import NodeClient
from giornata.domain.errors import Forbidden, Unauthenticated, Unavailable
from giornata.fleets.salad import SaladOptions, open_identities
from giornata.protocol.node.node_checks import NodeChecks
from giornata.protocol.node.work import Claim, ClaimReply, NodeInfo

OPTIONS = SaladOptions(
    organization="acme",
    project="loras",
    image="i",
    gpu_classes=("g",),
    group="loras",
    organization_id=ORGANIZATION_ID,
)


@pytest.fixture
def keys() -> SaladKeys:
    return SaladKeys()


@pytest.fixture
def workload(keys: SaladKeys) -> SaladWorkload:
    return SaladWorkload(keys=keys, now_s=time.time())


@pytest.fixture
def served(tmp_path: Path, keys: SaladKeys) -> Iterator[Served]:
    identities = open_identities(
        {"night": OPTIONS},
        now_ms=lambda: time.time_ns() // 1_000_000,
        transport=httpx.MockTransport(keys.answer),
    )
    with serving(tmp_path, identities=identities) as running:
        yield running


def info(workload: SaladWorkload, *, machine_id: str | None = None, fleet: str = "night") -> NodeInfo:
    return NodeInfo(node_id="node_00000001", machine_id=machine_id or workload.machine_id, name="n", fleet=fleet)


def claim(served: Served, token: str, node: NodeInfo) -> ClaimReply:
    with httpx.Client(base_url=served.url) as http:
        wanted = Claim(request_id="request-1", node=node, kinds=("x-count",))
        return NodeClient(http, node_key=lambda: token).claim(wanted)


def test_a_token_of_the_group_gets_work_of_every_project(served, workload):
    served.client(served.keys.other_admin).submit({"steps": 5}, kind="x-count")
    reply = claim(served, workload.token(), info(workload))
    assert reply.lease is not None
    (node,) = served.client(served.keys.admin).nodes()
    assert (node.machine_id, node.fleet) == (workload.machine_id, "night")


@pytest.mark.parametrize(
    "said",
    [{"machine_id": "another-machine"}, {"fleet": "day"}, {"fleet": "loras"}],
    ids=["machine", "fleet", "group"],
)
def test_a_node_speaks_for_no_other_machine_and_no_other_fleet(served, workload, said):
    served.client().submit({"steps": 5}, kind="x-count")
    with pytest.raises(Forbidden, match="the token is of the"):
        claim(served, workload.token(), info(workload, **said))
    with httpx.Client(base_url=served.url) as http, pytest.raises(Forbidden):
        NodeClient(http, node_key=workload.token).report_checks(NodeChecks(node=info(workload, **said)))
    assert list(served.client(served.keys.admin).nodes()) == []
    assert claim(served, workload.token(), info(workload)).lease is not None


def test_a_key_of_a_node_may_say_any_machine_as_ever(served, workload):
    assert claim(served, served.keys.node, info(workload, machine_id="mine", fleet="static")).reason == "empty-queue"


def test_d101_a_token_of_another_organization_is_refused(served, workload):
    with pytest.raises(Unauthenticated):
        claim(served, workload.token(aud="11111111-2222-3333-4444-555555555555"), info(workload))


def test_a_token_only_claims(served, workload):
    answer = served.call("GET", "/v1/jobs", workload.token())
    assert answer.status_code == 403
    assert served.call("GET", "/v1/keys", workload.token()).status_code == 403


def test_d100_many_claims_ask_the_provider_once(served, workload, keys):
    token = workload.token()
    for _ in range(5):
        claim(served, token, info(workload))
    claim(served, workload.token(jti="another"), info(workload))
    assert keys.fetched == 1


def test_d102_a_token_that_ran_out_is_refused_though_it_was_known(served, workload):
    in_s = 2 - 10  # it ends soon; what is checked afresh has ten seconds of grace
    token = workload.token(exp=int(time.time()) + in_s)
    assert claim(served, token, info(workload)).reason == "empty-queue"
    later = workload.token(exp=int(time.time()) - 11)
    with pytest.raises(Unauthenticated):
        claim(served, later, info(workload))


def test_while_the_providers_keys_cannot_be_had_a_node_is_told_to_try_again(served, workload, keys):
    keys.away = True
    with pytest.raises(Unavailable):
        claim(served, workload.token(), info(workload))
    assert claim(served, served.keys.node, info(workload)).reason == "empty-queue", "keys are as good as ever"


def test_workload_token_is_refused_without_fleet_that_takes_it(tmp_path, workload):
    with serving(tmp_path) as plain, pytest.raises(Unauthenticated, match="no fleet"):
        claim(plain, workload.token(), info(workload))
