"""The fleet of processes on this machine. A stand-in for a node calls the test when it starts and when it goes."""

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest

from giornata.control.ports.fleet import Instance, InstanceState, Limits
from giornata.fleets.local import LocalFleet, LocalOptions, open_fleet
from giornata.fleets.local_slot import how_it_ended
from giornata.fleets.opening import FleetDependencies

PATIENCE_S = 20.0

NODE = """
import json, os, signal, socket, subprocess, sys
port, slot, manner = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
line = socket.create_connection(("127.0.0.1", port))
def say(**words):
    line.sendall(json.dumps(words).encode() + b"\\n")
def leave(*_):
    say(bye=True)
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if manner == "stubborn" else leave)
if manner == "stubborn":  # with a child that keeps the line open, and would outlive its parent
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=[line.fileno()])
print("hello from slot", slot, flush=True)
names = {"word": "WORD", "instance": "GIORNATA_INSTANCE_ID", "gpu": "CUDA_VISIBLE_DEVICES"}
say(slot=slot, pid=os.getpid(), session=os.getsid(0), **{key: os.environ.get(name) for key, name in names.items()})
if manner == "brief":
    os._exit(3)
signal.pause()
while True:
    signal.pause()
"""


@dataclass(frozen=True)
class StartedProcess:
    """One process that was started. `lines` ends when nobody holds the other end any more."""

    slot: int
    pid: int
    session: int
    word: str | None
    instance: str
    gpu: str | None
    lines: Iterator[dict]

    def last_words(self) -> list[dict]:
        return list(self.lines)


class StartedProcesses:
    """Where the stand-ins call."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(PATIENCE_S)
        self._open: list[socket.socket] = []

    def command(self, slot: int, manner: str = "patient") -> list[str]:
        port = self._listening.getsockname()[1]
        return [sys.executable, "-S", "-E", "-c", NODE, str(port), str(slot), manner]

    def next(self) -> StartedProcess:
        line, _ = self._listening.accept()
        line.settimeout(PATIENCE_S)
        self._open.append(line)
        lines = (json.loads(text) for text in line.makefile("r"))
        return StartedProcess(**next(lines), lines=lines)

    def close(self) -> None:
        for each in (self._listening, *self._open):
            each.close()


@pytest.fixture
def nodes() -> Iterator[StartedProcesses]:
    opened = StartedProcesses()
    yield opened
    opened.close()


@pytest.fixture
def fleet_of(nodes: StartedProcesses, tmp_path: Path):
    @contextmanager
    def running(count: int, *, manner: str = "patient", **fields):
        fleet = LocalFleet(
            name="local",
            command=lambda slot: nodes.command(slot, manner),
            log_directory=tmp_path / "logs",
            **({"grace_s": PATIENCE_S} | fields),
        )
        try:
            fleet.desired(count)
            yield fleet
        finally:
            fleet.close()

    return running


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def running(caller: StartedProcess, *, restarts: int = 0) -> Instance:
    place = f"local-{caller.slot}"
    state = InstanceState.RUNNING
    return Instance(id=caller.instance, state=state, name=place, machine_id=place, restarts=restarts)


def test_each_slot_has_a_process_in_a_session_of_its_own_with_a_log(fleet_of, nodes, tmp_path):
    with fleet_of(2, environment={"WORD": "secret"}, price_micro_usd_per_hour=200_000) as fleet:
        first, second = sorted((nodes.next(), nodes.next()), key=lambda caller: caller.slot)
        assert list(fleet.list()) == [running(first), running(second)]
        assert fleet.pids() == {first.instance: first.pid, second.instance: second.pid}
        assert (first.session, second.session) == (first.pid, second.pid)
        assert (first.word, first.gpu) == ("secret", None)
        assert fleet.price().micro_usd_per_hour == 200_000
        assert fleet.limits == Limits(moves=False)
        assert (tmp_path / "logs" / "local-1.log").read_text() == "hello from slot 1\n"


def test_each_of_several_gpus_is_for_one_slot(fleet_of, nodes):
    with fleet_of(2, gpus=("3", "GPU-5f")) as fleet:
        callers = sorted((nodes.next(), nodes.next()), key=lambda caller: caller.slot)
        assert [caller.gpu for caller in callers] == ["3", "GPU-5f"]
        assert fleet.limits.most_nodes == 2


def test_a_node_that_was_killed_is_started_again_as_another_instance(fleet_of, nodes):
    with fleet_of(1) as fleet:
        first = nodes.next()
        os.kill(first.pid, 9)
        second = nodes.next()
        assert second.pid != first.pid
        assert second.instance != first.instance
        (listed,) = fleet.list()
        assert "was killed by SIGKILL" in listed.trouble
        assert replace(listed, trouble="") == running(second, restarts=1)


def test_child_processes_of_killed_node_are_killed_too(fleet_of, nodes):
    with fleet_of(1, manner="stubborn", grace_s=0.2):
        first = nodes.next()
        os.kill(first.pid, 9)
        assert first.last_words() == [], "the line is closed only when its child is gone too"


def test_closing_asks_first_and_starts_nothing_again(fleet_of, nodes):
    with fleet_of(2) as fleet:
        callers = [nodes.next(), nodes.next()]
        fleet.close()
        assert [caller.last_words() for caller in callers] == [[{"bye": True}]] * 2
        assert all(gone(caller.pid) for caller in callers)
        assert list(fleet.list()) == []
        fleet.desired(2)
        assert list(fleet.list()) == []


def test_node_that_ignores_shutdown_is_killed_with_its_child_processes(fleet_of, nodes):
    with fleet_of(1, manner="stubborn", grace_s=0.2) as fleet:
        caller = nodes.next()
        fleet.close()
        assert caller.last_words() == []
        assert gone(caller.pid)


def test_fewer_are_asked_for_and_nobody_waits_for_those_that_take_their_time(fleet_of, nodes):
    with fleet_of(1, manner="stubborn", grace_s=0.5) as fleet:
        caller = nodes.next()
        fleet.desired(0)
        (listed,) = fleet.list()
        assert (listed.id, listed.state) == (caller.instance, InstanceState.STOPPING)
        assert caller.last_words() == [], "it is killed when its time is over"


def test_reallocating_does_not_ask(fleet_of, nodes):
    with fleet_of(1) as fleet:
        first = nodes.next()
        fleet.reallocate(first.instance, reason="a test")
        assert first.last_words() == []
        assert nodes.next().slot == 0
        assert [each.restarts for each in fleet.list()] == [0], "it did not end by itself"


def test_drained_node_is_asked_to_exit_only_when_desired_count_falls(fleet_of, nodes):
    with fleet_of(2) as fleet:
        first, second = sorted((nodes.next() for _ in range(2)), key=lambda caller: caller.slot)
        fleet.drain(first.instance)
        fleet.desired(1)
        assert first.last_words() == [{"bye": True}]
        assert {each.id for each in fleet.list() if each.state is InstanceState.RUNNING} == {second.instance}


def test_server_variables_for_kinds_and_workloads_are_not_passed_to_local_nodes(tmp_path):
    of_server = {"GIORNATA_WORKLOADS": '{"x-count": "count"}', "GIORNATA_KINDS": '["x-count"]', "HF_HOME": "/models"}
    dependencies = FleetDependencies(
        server_url=lambda: "http://here",
        node_key=lambda: "gk_x",
        data=tmp_path,
        environment=of_server,
        now_ms=lambda: 0,
    )
    environment = open_fleet("here", LocalOptions(gpus=0), dependencies).environment
    assert "GIORNATA_WORKLOADS" not in environment, "its nodes would take jobs that the table does not name"
    assert (environment["GIORNATA_KINDS"], environment["HF_HOME"]) == ('["train", "generate"]', "/models")


def test_process_exit_reason_contains_status_and_last_log_line(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"first\nModuleNotFoundError: no torch\n\n")
    assert how_it_ended(3, log) == "the process before ended with status 3: ModuleNotFoundError: no torch"
    assert how_it_ended(-9, tmp_path / "none") == "the process before was killed by SIGKILL"
    assert how_it_ended(-250, None) == "the process before was killed by signal 250"
    assert how_it_ended(0, log) == "", "it left as it was told to"
    log.write_bytes(b"2026-11-21 05:59:26,132 ERROR giornata.agent.agent engine a b: ended with 64\n")
    assert how_it_ended(1, log).endswith("status 1: engine a b: ended with 64"), "what a logger adds is left out"
    log.write_bytes(b"x" * 10_000 + b"\xff")
    assert 150 < len(how_it_ended(1, log)) < 300


def test_scale_in_ends_named_nodes_first_and_then_the_newest(fleet_of, nodes):
    with fleet_of(3) as fleet:
        first, second, third = sorted((nodes.next() for _ in range(3)), key=lambda caller: caller.slot)
        fleet.desired(2, leaving=[second.instance])
        assert second.last_words() == [{"bye": True}]
        fleet.desired(1)
        assert third.last_words() == [{"bye": True}]
        assert set(fleet.pids()) >= {first.instance}
        fleet.desired(2)
        assert nodes.next().slot == 1, "the lowest place that is free"


def test_a_node_that_ends_at_once_is_started_ever_more_rarely(nodes, tmp_path):
    # A clock that goes on by a second whenever it is looked at: once for each turn of the watch.
    ticks, started_at_s, enough = iter(range(10_000)), [], threading.Event()
    now = [0]

    def monotonic_s() -> float:
        now[0] = next(ticks)
        return float(now[0])

    def command(slot: int) -> list[str]:
        started_at_s.append(now[0])
        if len(started_at_s) == 5:
            enough.set()
        return nodes.command(slot, "brief")

    fleet = LocalFleet(name="local", command=command, log_directory=tmp_path / "logs", monotonic_s=monotonic_s)
    fleet.desired(1)
    try:
        assert enough.wait(PATIENCE_S * 3)
    finally:
        fleet.close()
    pauses_s = [after - before for before, after in pairwise(started_at_s)]
    assert pauses_s == sorted(pauses_s)
    assert pauses_s[-1] >= 8
    assert pauses_s[0] <= 3


def test_a_slot_waits_for_its_predecessor_to_end_before_a_new_process_is_started_in_it(nodes, tmp_path):
    """Two of one slot would share its directory and its GPU."""
    started, now_s = [], [0.0]

    def command(slot: int) -> list[str]:
        started.append(slot)
        return nodes.command(slot, "stubborn" if len(started) == 1 else "patient")

    fleet = LocalFleet(
        name="local",
        command=command,
        log_directory=tmp_path / "logs",
        grace_s=30.0,
        monotonic_s=lambda: now_s[0],
        watched=False,
    )
    try:
        fleet.desired(1)
        first = nodes.next()
        fleet.desired(0)
        fleet.desired(2)
        assert nodes.next().slot == 1, "another slot has nobody to wait for"
        now_s[0] = 29.0
        fleet.tend()
        assert started == [0, 1]
        to_come, _, going = fleet.list()
        assert (to_come.state, going.state) == (InstanceState.STARTING, InstanceState.STOPPING)
        assert to_come.machine_id == going.machine_id
        assert going.id == first.instance != to_come.id
        now_s[0] = 31.0
        fleet.tend()
        assert first.last_words() == [], "its time was over"
        assert gone(first.pid)
        second = nodes.next()
        assert (second.slot, second.instance) == (0, to_come.id)
    finally:
        fleet.close()
