"""The driver of processes on this machine, with a stand-in for a node that does nothing until it is told to go.

Nobody watches over the processes but the test: time goes on, and the fleet looks after them, when `settle` says so.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from tests.contract.fleets.under_test import WORK

from giornata.control.ports.fleet import InstanceState
from giornata.fleets.local import LocalOptions, open_fleet
from giornata.fleets.local_slot import HEALTHY_AFTER_S, MAX_BACKOFF_S
from giornata.fleets.opening import FleetDependencies

PATIENCE_S = 30.0
QUIET_NODE = "import signal; signal.pause()"
FLAGS = {
    "--url": "GIORNATA_URL",
    "--name": "GIORNATA_NODE_NAME",
    "--machine-id": "GIORNATA_MACHINE_ID",
}


class LocalUnderTest:
    """A fleet whose nodes sleep, on a clock that the test moves."""

    name = "local"
    reallocation_moves = False
    chooses_who_leaves = True
    gives_nodes = True

    def __init__(self, directory: Path) -> None:
        self._now_s = 0.0
        self._program = QUIET_NODE
        dependencies = FleetDependencies(
            server_url=lambda: "https://giornata.example",
            node_key=lambda: "gk_00000000_node",
            data=directory,
            environment={"GIORNATA_KINDS": '["train"]', "PATH": os.environ["PATH"]},
            now_ms=lambda: time.time_ns() // 1_000_000,
            work=WORK,
        )
        self.fleet = open_fleet("local", LocalOptions(gpus=0, grace_s=5.0), dependencies)
        self.command = self.fleet.command
        self.fleet.command = lambda _slot: [sys.executable, "-S", "-E", "-c", self._program]
        self.fleet.monotonic_s = lambda: self._now_s
        self.fleet.watched = False

    def told(self) -> dict[str, dict[str, str]]:
        """Its environment as the kernel has it, and what the command line of its slot says besides."""
        found = {}
        for slot, (instance_id, pid) in enumerate(self.fleet.pids().items()):
            words = self.command(slot)
            said = {name: words[words.index(flag) + 1] for flag, name in FLAGS.items()}
            found[instance_id] = environment_of(pid) | said
        return found

    def settle(self) -> None:
        for _ in range(20):
            self.fleet.tend()
            states = {each.id: each.state for each in self.fleet.list()}
            if set(states.values()) <= {InstanceState.RUNNING}:
                return
            for instance_id, pid in self.fleet.pids().items():
                if states.get(instance_id) is InstanceState.STOPPING:
                    wait_for_end(pid)
            self._now_s += 1.0
        raise AssertionError(f"it does not settle: {self.fleet.list()}")

    def vanish(self, instance_id: str) -> None:
        pid = self.fleet.pids()[instance_id]
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)

    def end_process(self, instance_id: str) -> None:
        self.vanish(instance_id)
        self.fleet.tend()
        self._now_s += MAX_BACKOFF_S
        self.settle()

    @contextmanager
    def hold_up(self) -> Iterator[str]:
        self._program = "import sys; sys.exit('there is no such model')"
        yield "ended with status 1: there is no such model"
        self._program = QUIET_NODE

    def settle_well(self) -> None:
        """What runs has run for a while."""
        self._now_s += HEALTHY_AFTER_S

    def settle_held_up(self) -> None:
        """It has started, has ended, and is to start again."""
        self.fleet.tend()
        for pid in self.fleet.pids().values():
            wait_for_end(pid)
        self.fleet.tend()
        self._now_s += MAX_BACKOFF_S

    def away(self) -> AbstractContextManager[None]:
        raise NotImplementedError("processes of one's own can always be asked")


def environment_of(pid: int) -> dict[str, str]:
    """As the kernel has it: nothing for a moment, while the process becomes another program."""
    until_s = time.monotonic() + PATIENCE_S
    while not (text := Path(f"/proc/{pid}/environ").read_text()):
        assert time.monotonic() < until_s, f"process {pid} has no environment"
        os.sched_yield()
    return dict(pair.split("=", 1) for pair in text.rstrip("\0").split("\0"))


def wait_for_end(pid: int) -> None:
    """Until the process has ended, whether or not anybody has asked for its status."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            ended, _, _ = select.select([descriptor], [], [], PATIENCE_S)
            assert ended, f"process {pid} does not end"
        finally:
            os.close(descriptor)


@contextmanager
def opened(directory: Path) -> Iterator[LocalUnderTest]:
    under_test = LocalUnderTest(directory)
    try:
        yield under_test
    finally:
        under_test.fleet.close()
