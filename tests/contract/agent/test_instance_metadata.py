"""What a node on SaladCloud knows of itself, and asks of its machine."""

import httpx
import pytest
from tests.fixtures.answering import answering
from tests.fixtures.salad_imds import SaladKeys, SaladWorkload

from giornata.agent.machine.instance_metadata import HEADERS, InstanceMetadata, WorkloadToken, direct_client, place_in
from giornata.agent.settings import AgentSettings
from giornata.client.node import NodeClient
from giornata.domain.errors import Unavailable
from giornata.protocol.node.work import Claim, NodeInfo


@pytest.fixture
def workload() -> SaladWorkload:
    return SaladWorkload(keys=SaladKeys(), now_s=1_790_000_000.0)


def imds_of(workload: SaladWorkload) -> InstanceMetadata:
    transport = httpx.MockTransport(workload.answer)
    return InstanceMetadata(
        http=httpx.Client(base_url="http://169.254.169.254", headers=HEADERS, transport=transport)
    )


def test_the_place_is_read_from_the_environment(workload):
    place = place_in(workload.environment())
    assert place is not None
    assert (place.machine_id, place.instance_id) == (workload.machine_id, workload.instance_id)
    assert place.group == "loras"
    assert place_in({"HOME": "/root", "HOSTNAME": "a"}) is None
    assert place_in({"SALAD_MACHINE_ID": ""}) is None


def test_token_and_status_are_read(workload):
    imds = imds_of(workload)
    assert imds.token() == workload.token()
    assert imds.status() == (True, True)


def test_d120_reallocation_gives_its_reason_in_at_most_1000_characters(workload):
    imds_of(workload).reallocate("too little\n VRAM")
    imds_of(workload).reallocate("x" * 3000)
    imds_of(workload).reallocate("")
    assert workload.reallocated[0] == "too little VRAM"
    assert len(workload.reallocated[1]) == 1000
    assert workload.reallocated[2]


def test_leaving_raises_nothing_though_nobody_answers(workload):
    workload.away = True
    imds_of(workload).leave("too little VRAM")
    with pytest.raises(Unavailable):
        imds_of(workload).reallocate("too little VRAM")


def test_requests_go_past_every_proxy(workload):
    with answering(workload.answer) as url, direct_client(url) as http:
        assert http.trust_env is False
        assert InstanceMetadata(http=http).token()
        assert http._mounts == {}


def test_a_token_is_kept_for_a_minute_and_then_fetched_anew():
    now_s, fetched = [0.0], []

    def fetch() -> str:
        fetched.append(now_s[0])
        return f"token-{len(fetched)}"

    bearer = WorkloadToken(fetch=fetch, monotonic_s=lambda: now_s[0])
    given = []
    for at_s in (0, 30, 59, 61, 100, 125):
        now_s[0] = at_s
        given.append(bearer())
    assert given == ["token-1"] * 3 + ["token-2"] * 2 + ["token-3"]


def test_while_no_new_token_can_be_had_the_last_does_as_long_as_it_is_good():
    now_s, away = [0.0], [False]

    def fetch() -> str:
        if away[0]:
            raise Unavailable("no answer")
        return f"token at {now_s[0]}"

    bearer = WorkloadToken(fetch=fetch, monotonic_s=lambda: now_s[0])
    assert bearer() == "token at 0.0"
    now_s[0], away[0] = 169.0, True
    assert bearer() == "token at 0.0"
    now_s[0] = 171.0
    with pytest.raises(Unavailable):
        bearer()
    away[0] = False
    assert bearer() == "token at 171.0"


def test_a_claim_carries_the_token_of_the_moment():
    sent = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers["authorization"])
        return httpx.Response(200, json={})

    tokens = iter(["one", "two"])
    with httpx.Client(base_url="http://server", transport=httpx.MockTransport(answer)) as http:
        node = NodeClient(http, node_key=lambda: next(tokens))
        claim = Claim(
            request_id="r" * 16, node=NodeInfo(node_id="node_00000001", machine_id="m", name="n"), kinds=("train",)
        )
        node.claim(claim)
        node.claim(claim)
    assert sent == ["Bearer one", "Bearer two"]


def test_a_node_needs_a_key_or_something_that_gives_tokens(tmp_path):
    some = {"url": "http://server", "machine_id": "m", "name": "n", "work_dir": tmp_path}
    assert [fault.where for fault in AgentSettings(**some, key="").faults()] == ["key"]
    assert AgentSettings(**some, key="", bearer=lambda: "token").faults() == ()
    assert AgentSettings(**some, key="gk_x").faults() == ()
