"""A workload that the operator made has to tell its pods the work that the fleet's table says."""

import pytest
from tests.contract.fleets.kubernetes_fleets import raised
from tests.contract.fleets.under_test import WORK
from tests.fixtures.kubernetes_under_test import strict_cluster

from giornata.domain.errors import FleetRefused
from giornata.fleets.kubernetes.workload import workload_of
from giornata.fleets.opening import KINDS, PLACES, NodeWork

TOLD = WORK.environment("gpu")
FROM_MAP = {"configMapKeyRef": {"name": "nodes", "key": "kinds"}}


def made_by_hand(it, environment, *, args=("node",), env_from=()):
    """A Deployment of the operator with these variables of its container: a text, or where the text comes from."""
    manifest = workload_of("gpu", it.fleet.calls.name, it.options, dict, 0)
    del manifest["metadata"]["annotations"]
    del manifest["spec"]["template"]["metadata"]["annotations"]
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    for name, said in environment.items():
        container["env"].append({"name": name, ("value" if isinstance(said, str) else "valueFrom"): said})
    container |= {"image": "registry.example/by-hand:1", "args": list(args), "envFrom": list(env_from)}
    it.api.call("POST", f"/apis/apps/v1/namespaces/{it.api.namespace}/deployments", manifest)


@pytest.fixture(params=["no image", "an image"])
def opened(request, tmp_path):
    """Without an image the workload is always the operator's; with one it is where the operator has made it."""

    def one(work):
        image = {"image": None} if request.param == "no image" else {}
        return strict_cluster(tmp_path, work=work, **image)

    return one


@pytest.mark.parametrize(
    ("environment", "missing"),
    [
        ({}, {KINDS, PLACES}),
        ({PLACES: "3"}, {KINDS}),
        ({KINDS: '["train"]', PLACES: "3"}, {KINDS}),
        ({KINDS: "pretrain", PLACES: "3"}, {KINDS}),
        ({KINDS: TOLD[KINDS], PLACES: "1"}, {PLACES}),
    ],
)
def test_pods_for_other_work_than_the_tables_are_not_started(opened, environment, missing):
    with opened(WORK) as it:
        made_by_hand(it, environment)
        with pytest.raises(FleetRefused, match="other kinds of job than the fleet's settings") as refused:
            it.fleet.desired(2)
        assert {name for name in (KINDS, PLACES) if f"{name}='" in str(refused.value)} == missing
        it.settle()
        assert it.fleet.list() == [], "nothing was started, and nothing is paid for"
        it.fleet.desired(0)


@pytest.mark.parametrize(
    ("environment", "given"),
    [
        ({KINDS: '["x-count", "pretrain"]', PLACES: "3"}, {}),
        ({KINDS: '["train", "x-count", "pretrain"]', PLACES: "4"}, {}),
        ({KINDS: FROM_MAP, PLACES: "3"}, {}),
        ({}, {"env_from": [{"configMapRef": {"name": "nodes"}}]}),
        ({PLACES: "3"}, {"args": ["node", "--kind", "pretrain", "--kind=x-count"]}),
    ],
)
def test_pods_that_do_the_tables_work_are_started_as_are_those_whose_work_cannot_be_read(opened, environment, given):
    with opened(WORK) as it:
        made_by_hand(it, environment, **given)
        assert len(raised(it, 2)) == 2


def test_a_workload_that_tells_nothing_is_right_for_a_table_of_defaults(opened):
    with opened(NodeWork()) as it:
        made_by_hand(it, {})
        assert len(raised(it, 1)) == 1
