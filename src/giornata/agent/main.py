"""The composition root of a node: the real clock, network, signals and engine."""

import functools
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

import httpx

from giornata.agent.agent import Agent
from giornata.agent.attempt.commands import ShutdownSignal
from giornata.agent.claiming import ExitCode
from giornata.agent.engines.engine_process import EngineProcess
from giornata.agent.engines.engines import Engines, KernelDir, engine_environment
from giornata.agent.machine.machine_checks import Provider
from giornata.agent.machine.node_probes import NodeProbes, caches_of
from giornata.agent.settings import AgentSettings, is_built_in
from giornata.agent.transfer.transport import HttpStorage
from giornata.client.node import NodeClient
from giornata.client.retry import Monotonic
from giornata.client.trust import trusted
from giornata.domain.errors import InvalidInput

log = logging.getLogger(__name__)

EXIT_AT_ONCE = 130


def monotonic_s() -> float:
    """Return seconds that also pass while the machine is suspended: a lease does not wait for a laptop to wake up."""
    boot_clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_clock is None else time.clock_gettime(boot_clock)


def run_node(settings: AgentSettings, *, provider: Provider | None = None) -> int:
    """Run a node in this process until SIGTERM or SIGINT, and return its exit code.

    The first signal lets the job at hand write a checkpoint, commit it and go back to the queue; the second ends
    everything at once. `provider` is asked for another machine when this one is not fit. Must be called from the main
    thread.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    environment = os.environ if settings.environment is None else settings.environment
    shutdown = ShutdownSignal()
    # An attempt has at most so many requests on their way: six inputs, a heartbeat, an upload, a log, its end.
    limits = httpx.Limits(max_connections=max(32, 12 * settings.places), max_keepalive_connections=8)
    with (
        httpx.Client(base_url=settings.url, limits=limits, verify=trusted()) as http,
        httpx.Client(limits=limits, verify=trusted()) as storage_http,
    ):
        agent = Agent(
            settings=settings,
            node=NodeClient(http, node_key=settings.key or settings.bearer or ""),
            storage=HttpStorage(storage_http),
            launch=functools.partial(
                launch,
                environment=environment,
                threads=settings.threads,
                clock_s=monotonic_s,
                kernels=settings.kernels(),
            ),
            shutdown=shutdown,
            monotonic_s=monotonic_s,
            rng=random.SystemRandom(),
            probes=NodeProbes(
                visible=environment.get("CUDA_VISIBLE_DEVICES"), caches=caches_of(environment, settings.work_dir)
            ),
            provider=provider,
        )
        install_signals(agent.engines, shutdown, say=_say)
        try:
            return agent.run()
        except InvalidInput as error:
            for fault in error.faults:
                log.error("%s", fault)
            return ExitCode.UNUSABLE


def launch(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    threads: int,
    clock_s: Monotonic,
    kernels: KernelDir | None = None,
) -> EngineProcess:
    """Start an engine in the environment that engines get. Kernels are the built-in engine's alone."""
    room = kernels if is_built_in(command) else None
    made = engine_environment(environment, threads=threads, kernels=room)
    return EngineProcess(command, environment=made, monotonic_s=clock_s)


def install_signals(engines: Engines, shutdown: ShutdownSignal, *, say: Callable[[str], None]) -> None:
    """Let the first SIGTERM or SIGINT end the work with a checkpoint, and the second end everything at once.

    `say` tells people of the first one. It is called in a signal handler.
    """

    def leave(number: int, _: FrameType | None) -> None:
        if shutdown.requested:
            if engines.current is not None:
                engines.current.kill_now()
            os._exit(EXIT_AT_ONCE)
        shutdown.ask()
        say(f"{signal.Signals(number).name}: finishing with a checkpoint; once more ends at once")

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)


def _say(text: str) -> None:
    """Write a line of the log, in its format, from a signal handler."""
    record = log.makeRecord(log.name, logging.WARNING, __file__, 0, text, (), None)
    formats = [handler.format for handler in logging.getLogger().handlers[:1]]
    # Not by the handler: this may interrupt a write of its own, and neither locks nor buffers are reentrant.
    os.write(2, (formats[0](record) if formats else text).encode() + b"\n")
