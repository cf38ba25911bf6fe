"""A node asks what its fleet wants, measures its link by the URLs that it gets, and tells."""

from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from tests.fixtures.served import Served

from giornata.agent.machine.bandwidth import BandwidthProbe
from giornata.agent.main import monotonic_s
from giornata.agent.transfer.transport import HttpStorage
from giornata.client.node import NodeClient
from giornata.control.context import GovernedFleet
from giornata.domain.errors import Forbidden
from giornata.domain.machines.node_checks import MIB, NodeThresholds
from giornata.protocol.node.node_checks import NodeChecks, NodeFigures
from giornata.protocol.node.work import NodeInfo

NODE = NodeInfo(node_id="node_00000001", machine_id="m-1", name="n-1", fleet="far", instance_id="i-1")
LINK = NodeThresholds(min_download_bytes_per_s=0.25 * MIB, min_upload_bytes_per_s=0.25 * MIB, max_clock_skew_s=5)


def node_client(served: Served, key: str | None = None) -> NodeClient:
    return NodeClient(httpx.Client(base_url=served.url), node_key=key or served.keys.node)


def with_fleet(served: Served, thresholds: NodeThresholds) -> None:
    fleet = GovernedFleet(name="far", driver="static", fleet=None, thresholds=thresholds)  # type: ignore[arg-type]
    served.app.state.context = replace(served.ctx, fleets={"far": fleet})


def test_the_link_is_measured_by_the_urls_of_the_policy(served: Served, tmp_path: Path) -> None:
    with_fleet(served, LINK)
    node = node_client(served)
    policy = node.policy("far")
    assert (policy.min_download_bytes_per_s, policy.max_clock_skew_s, policy.min_driver) == (0.25 * MIB, 5, None)
    assert policy.download is not None
    assert policy.upload is not None
    links = BandwidthProbe(HttpStorage(served.http), tmp_path / "w", monotonic_s=monotonic_s)
    (tmp_path / "w").mkdir()
    for measured in (
        links.download_bytes_per_s(policy.download, wanted=0.25 * MIB),
        links.upload_bytes_per_s(policy.upload, wanted=0.25 * MIB),
    ):
        assert measured is not None
        assert measured > 0.25 * MIB
    # Nobody can put anything else there.
    request = policy.upload.request
    headers = {**request.headers, "Content-Length": "5"}
    assert served.http.put(request.url, content=b"other", headers=headers).status_code >= 400


def test_node_checks_reported_over_http_are_listed_with_node(served: Served) -> None:
    checks = NodeChecks(
        node=NODE, kinds=("train",), figures=NodeFigures(driver="550.54"), shortcomings=("too slow",), leaving=True
    )
    assert node_client(served).report_checks(checks).drain is False
    (listed,) = served.client(served.keys.admin).nodes()
    assert listed.checks is not None
    assert (listed.checks.shortcomings, listed.checks.leaving) == (("too slow",), True)
    assert (listed.instance_id, listed.fleet) == ("i-1", "far")


def test_a_user_is_no_node(served: Served) -> None:
    with pytest.raises(Forbidden):
        node_client(served, served.keys.admin).policy("far")


def test_a_policy_is_asked_for_by_the_name_of_a_fleet(served: Served) -> None:
    with_fleet(served, NodeThresholds(min_driver="550"))
    assert node_client(served).policy("far").min_driver == "550"
    assert node_client(served).policy("near").min_driver is None
    odd = node_client(served).policy("a fleet/with & odd ? letters")
    assert odd.min_driver is None
