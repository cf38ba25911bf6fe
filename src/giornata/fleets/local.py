"""A fleet of node processes on this machine.

Each node is `giornata node …` in a session of its own, in a slot: the slot names the hardware, so that bans and kept
models stay when its process is replaced. A node that ends is started again, later each time when it ends at once;
each start is an instance of its own. To end a node, the fleet sends SIGTERM: the node writes a checkpoint, commits it
and gives its job back. After the grace time the fleet kills the node with everything that the node started.

On a machine with several GPUs each slot has one of them.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field

from giornata.control.ports.fleet import Instance, InstanceState, Limits, Price
from giornata.domain.billing.money import MICRO_USD
from giornata.domain.errors import InstanceGone
from giornata.fleets.local_slot import EndingProcess, Slot
from giornata.fleets.opening import OF_TABLE, FleetDependencies, FleetOptions

POLL_S = 0.2

INSTANCE_ID = "GIORNATA_INSTANCE_ID"

Command = Callable[[int], Sequence[str]]
"""The command line of the node in slot N. Which instance it is stands in its environment."""


class LocalOptions(FleetOptions):
    """Options of a fleet on this machine."""

    price_usd_per_hour: float = Field(0.0, ge=0, le=1000, description="Price of one node in US dollars per hour.")
    gpus: int | None = Field(
        None,
        ge=0,
        le=64,
        description="Number of GPUs to share out, one to each node. Default: the GPUs that nvidia-smi lists. "
        "0: nodes get no GPU of their own.",
    )
    grace_s: float = Field(
        35.0, ge=0, description="Seconds that a node has for last checkpoints before the server kills it."
    )


OPTIONS = LocalOptions


@dataclass(slots=True, kw_only=True)
class LocalFleet:
    """See `giornata.control.ports.fleet.FleetDriver`. Thread-safe.

    A thread of its own looks after the processes, unless it is not `watched`: then whoever has it calls `tend`.
    """

    name: str
    command: Command
    log_directory: Path
    environment: Mapping[str, str] | None = None
    gpus: Sequence[str] = ()
    price_micro_usd_per_hour: int = 0
    grace_s: float = 30.0
    monotonic_s: Callable[[], float] = time.monotonic
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    watched: bool = True
    _slots: dict[int, Slot] = field(default_factory=dict)
    _ending: list[EndingProcess] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def limits(self) -> Limits:
        """The limits: one node per GPU, where there are GPUs to give out. Restarted nodes stay where they were."""
        return Limits(most_nodes=len(self.gpus) or None, moves=False)

    def desired(self, nodes: int, *, leaving: Collection[str] = ()) -> None:
        """Ask for this many nodes. Fewer than now: those that are leaving go, then those that came last."""
        with self._lock:
            if self._stopping.is_set():
                return
            while len(self._slots) > nodes:
                number = max(self._slots, key=lambda each: self._first_to_go(self._slots[each], leaving))
                self._let_go(self._slots.pop(number))
            free = (number for number in range(nodes + len(self._slots)) if number not in self._slots)
            for number in [next(free) for _ in range(nodes - len(self._slots))]:
                self._slots[number] = Slot(number=number, instance_id=self._new_id(number), log=self._log(number))
            self.tend()
            self._watch()

    def list(self) -> Sequence[Instance]:
        """Every slot, with the process that is in it or is to come; and those that are on their way out."""
        with self._lock:
            now_s = self.monotonic_s()
            present = [
                self._instance(
                    slot.instance_id,
                    slot.number,
                    InstanceState.RUNNING if slot.alive else InstanceState.STARTING,
                    trouble=slot.trouble(now_s),
                    restarts=slot.restarts,
                )
                for slot in self._slots.values()
                if slot.alive or slot.process is None
            ]
            ending = [
                self._instance(each.instance_id, each.number, InstanceState.STOPPING)
                for each in self._ending
                if each.process.poll() is None
            ]
            return [*present, *ending]

    def pids(self) -> Mapping[str, int]:
        """The process of each instance that has one."""
        with self._lock:
            running = {
                each.instance_id: each.process.pid for each in self._slots.values() if each.process is not None
            }
            return running | {each.instance_id: each.process.pid for each in self._ending}

    def drain(self, instance_id: str) -> None:
        """The process is the first to go when there are to be fewer; what comes after it in its slot is not."""
        self._slot_of(instance_id).leaves = True

    def reallocate(self, instance_id: str, *, reason: str) -> None:
        """Replace the process at once, without asking it."""
        del reason
        with self._lock:
            slot = self._slot_of(instance_id)
            slot.kill()
            slot.begin_again(self._new_id(slot.number), now_s=self.monotonic_s())

    def price(self) -> Price:
        """The price in the settings."""
        return Price(micro_usd_per_hour=self.price_micro_usd_per_hour, source="settings")

    def close(self) -> None:
        """Ask every node to end and wait for it, at most the grace time. May be repeated."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            for number in list(self._slots):
                self._let_go(self._slots.pop(number))
            for each in self._ending:
                each.wait(self.monotonic_s)
            self._ending.clear()

    def tend(self) -> None:
        """Look after every process once: start what is due, kill what takes too long to go."""
        with self._lock:
            now_s = self.monotonic_s()
            self._ending = [each for each in self._ending if not each.over(now_s)]
            taken = {each.number for each in self._ending}
            for slot in self._slots.values():
                slot.look_after(now_s, next_id=self._new_id)
                # Two of one slot would share its directory and its GPU.
                if slot.due(now_s) and slot.number not in taken:
                    slot.start(self._spawn(slot), now_s=now_s)

    def _watch(self) -> None:
        if self.watched and self._thread is None:
            self._thread = threading.Thread(target=self._keep_tending, name=f"fleet-{self.name}", daemon=True)
            self._thread.start()

    def _keep_tending(self) -> None:
        while not self._stopping.wait(POLL_S):
            self.tend()

    @staticmethod
    def _first_to_go(slot: Slot, leaving: Collection[str]) -> tuple[bool, bool, bool, float, int]:
        # What was started last may stand in the place of one that has left by itself.
        return slot.instance_id in leaving, slot.leaves, not slot.alive, slot.started_at_s, slot.number

    def _let_go(self, slot: Slot) -> None:
        if slot.process is not None:
            self._ending.append(slot.end(deadline_s=self.monotonic_s() + self.grace_s))

    def _slot_of(self, instance_id: str) -> Slot:
        with self._lock:
            for slot in self._slots.values():
                if slot.instance_id == instance_id and slot.alive:
                    return slot
        raise InstanceGone(f"no process of this fleet is {instance_id}")

    def _new_id(self, number: int) -> str:
        # Never the same again, not even after a restart of the server.
        return f"{self.name}-{number}-{self.now_ms():x}-{os.urandom(2).hex()}"

    def _instance(
        self, instance_id: str, number: int, state: InstanceState, *, trouble: str = "", restarts: int | None = None
    ) -> Instance:
        place = f"{self.name}-{number}"
        return Instance(id=instance_id, state=state, name=place, machine_id=place, trouble=trouble, restarts=restarts)

    def _log(self, number: int) -> Path:
        return self.log_directory / f"{self.name}-{number}.log"

    def _spawn(self, slot: Slot) -> subprocess.Popen[bytes]:
        self.log_directory.mkdir(parents=True, exist_ok=True)
        environment = dict(os.environ if self.environment is None else self.environment)
        environment[INSTANCE_ID] = slot.instance_id
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[slot.number % len(self.gpus)]
        with self._log(slot.number).open("ab") as log:
            return subprocess.Popen(
                list(self.command(slot.number)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )


def open_fleet(name: str, options: LocalOptions, dependencies: FleetDependencies) -> LocalFleet:
    """Nodes of this machine, with the keys and settings of the server that they are beside."""

    def command(slot: int) -> list[str]:
        place = f"{name}-{slot}"
        command = [sys.executable, "-m", "giornata", "--url", dependencies.server_url(), "node"]
        command += ["--exit-with-parent", str(os.getpid())]
        command += ["--name", place, "--machine-id", place]
        command += ["--price", str(options.price_usd_per_hour)]
        return [*command, "--work-dir", str(dependencies.data / "nodes" / place), *dependencies.node_flags]

    # What the server's own variables say of nodes is not for this fleet.
    kept = {variable: value for variable, value in dependencies.environment.items() if variable not in OF_TABLE}
    told = dependencies.work.environment(name) | {"GIORNATA_NODE_KEY": dependencies.node_key()}
    return LocalFleet(
        name=name,
        command=command,
        environment=kept | told,
        gpus=gpus_of_machine(options.gpus, dependencies.environment),
        log_directory=dependencies.data / "logs",
        price_micro_usd_per_hour=round(options.price_usd_per_hour * MICRO_USD),
        grace_s=options.grace_s,
        now_ms=dependencies.now_ms,
    )


Runner = Callable[[Sequence[str]], str]
"""Runs a command; its standard output. Raises OSError or CalledProcessError."""

ASKING_S = 30.0
LIST_GPUS = ("nvidia-smi", "--query-gpu=index", "--format=csv,noheader")
CHOSEN = "CUDA_VISIBLE_DEVICES"


def run_command(command: Sequence[str]) -> str:
    """Run a command with a time limit, and return its standard output."""
    done = subprocess.run(
        list(command), check=True, capture_output=True, text=True, timeout=ASKING_S, stdin=subprocess.DEVNULL
    )
    return done.stdout


def gpus_of_machine(
    wanted: int | None, environment: Mapping[str, str], *, run: Runner = run_command
) -> tuple[str, ...]:
    """Return one value of CUDA_VISIBLE_DEVICES per node: the GPUs that this process may use, at most `wanted`.

    `wanted` None: all of these GPUs. The result is empty when there are no GPUs or `wanted` is 0: then nodes see the
    GPUs that this process sees.
    """
    if wanted == 0:
        return ()
    found = _visible(environment.get(CHOSEN)) if CHOSEN in environment else _listed(run)
    return found if wanted is None else found[:wanted]


def _visible(chosen: str | None) -> tuple[str, ...]:
    names = (each.strip() for each in (chosen or "").split(","))
    return tuple(each for each in names if each and not each.startswith("-"))


def _listed(run: Runner) -> tuple[str, ...]:
    try:
        said = run(LIST_GPUS)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in said.splitlines() if line.strip().isdigit())
