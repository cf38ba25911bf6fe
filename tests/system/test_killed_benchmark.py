"""`giornata bench images` on a real server and real nodes: nodes and the command itself are killed on the way."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.chaos_proxy import Trap
from tests.system.conftest import PATIENCE_S
from tests.system.faults.ordered_pictures import PromptGate, files_of, png_of, rows_of
from tests.system.faults.processes import CLEAN, RunningNode
from tests.system.faults.rig import Rig, running_rig
from tests.system.faults.setup import PATIENT

from giornata.domain.generation.picture import PictureState

pytestmark = pytest.mark.long

COUNT, ORDER_SIZE, ORDERS = 60, 20, 4
INTERRUPTED = 130
NODE = {"max_pictures": 4, "companion_every_s": 0.2}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A server, and the nodes that tests start."""
    with running_rig(tmp_path_factory.mktemp("rig"), PATIENT) as running:
        yield running


class BenchCommand:
    """The command, which may be started again and again with the same state."""

    def __init__(self, rig: Rig, folder: Path, prompts: list[str]) -> None:
        self._rig, self._folder = rig, folder
        (folder / "prompts.txt").write_text("\n".join(prompts))
        self._key = (rig.server.data / "admin.key").read_text().strip()

    @contextmanager
    def started(self) -> Iterator["subprocess.Popen[str]"]:
        """One process of it, which is not waited for."""
        words = ["bench", "images", "--prompts", "prompts.txt", "--model", "some/model", "--state", "state.json"]
        words += ["--count", str(COUNT), "--order-size", str(ORDER_SIZE), "--size", "64x64", "--steps", "4", "--json"]
        words += ["--set", 'wildcards={"animal": ["cat", "dog"]}']
        told = {"GIORNATA_URL": self._rig.control.url, "GIORNATA_API_KEY": self._key}
        process = subprocess.Popen(
            [sys.executable, "-m", "giornata", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._folder,
            env={**CLEAN, **told, "HOME": str(self._folder)},
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def state(self) -> dict[str, Any]:
        """What the command has written down so far."""
        told: dict[str, Any] = json.loads((self._folder / "state.json").read_text())
        return told


def drawing(nodes: list[RunningNode], pid: int) -> RunningNode:
    """The node whose engine has this process id."""
    [found] = [node for node in nodes if node.process.poll() is None and node.engine_pid() == pid]
    return found


def test_benchmark_whose_nodes_and_command_are_killed_draws_every_picture_once(rig: Rig, tmp_path: Path) -> None:
    gates = [PromptGate(tmp_path), PromptGate(tmp_path)]
    command = BenchCommand(rig, tmp_path, [f"{gates[0].word} fox", f"{gates[1].word} {{red|blue}}", "a __animal__"])
    nodes = [rig.start_drawing_node(**NODE) for _ in range(2)]
    second_order = rig.control.set(Trap("POST", "^/v1/jobs$", skip=1, hold_reply=True))
    with command.started() as first:
        assert second_order.caught.wait(PATIENCE_S), first.poll()
        assert second_order.answered.wait(PATIENCE_S)
        first.send_signal(signal.SIGINT)
        said = first.communicate(timeout=PATIENCE_S)
        assert first.returncode == INTERRUPTED, said
    second_order.release(cut=True)
    assert len(command.state()["orders"]) == 1, "the order whose answer was lost is not known yet"
    drawing(nodes, gates[0].pid()).kill_all()
    gates[0].open()
    with command.started() as second:
        victim = drawing(nodes, gates[1].pid())
        nodes.append(rig.start_drawing_node(**NODE))
        victim.kill_all()
        second.send_signal(signal.SIGKILL)
        second.wait(PATIENCE_S)
    gates[1].open()
    with command.started() as third:
        told, errors = third.communicate(timeout=PATIENCE_S)
        assert third.returncode == os.EX_OK, errors
    figures, seed = json.loads(told), command.state()["seed"]
    assert (figures["pictures"], figures["failed"], figures["canceled"]) == (COUNT, 0, 0)
    assert sorted(figures["orders"]) == sorted(job.id for job in rig.client.jobs())
    assert len(figures["orders"]) == ORDERS
    rows = rows_of(rig, figures["orders"])
    assert [row["seed"] for row in rows] == list(range(seed, seed + COUNT))
    assert {row["state"] for row in rows} == {PictureState.SUCCEEDED}
    assert files_of(rig, rows) == [png_of(row["seed"]) for row in rows]
    assert sum(pictures for _, _, pictures in figures["node_histogram"]) == COUNT
