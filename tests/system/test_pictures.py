"""Pictures on two nodes: a real server, real agents, and an engine that draws without a model."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.faults.ordered_pictures import OrderedPictures, PromptGate
from tests.system.faults.rig import Rig, running_rig
from tests.system.faults.setup import PATIENT


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A server, and the nodes that tests start."""
    with running_rig(tmp_path_factory.mktemp("rig"), PATIENT) as running:
        yield running


def test_an_order_of_forty_pictures_is_whole_when_a_node_dies_in_the_middle(rig: Rig, tmp_path: Path) -> None:
    gate = PromptGate(tmp_path)
    prompts = ["sleep=0.02"] * 40
    prompts[20] = gate.word
    nodes = [rig.start_drawing_node(max_pictures=8, companion_every_s=0.2) for _ in range(2)]
    order = OrderedPictures(rig, prompts=prompts)
    pid = gate.pid()
    [victim] = [node for node in nodes if node.engine_pid() == pid]
    victim.kill_all()
    gate.open()
    order.finish()
    leases = {row["lease"] for row in order.rows()}
    assert len(leases) >= 5
