"""The engine of a node: the current process, its environment, and when it is replaced."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from giornata.agent.engines.engine_process import EngineProcess
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.node.pipe import Hello

log = logging.getLogger(__name__)

Launch = Callable[[Sequence[str]], EngineProcess]

# Names that decide the bits of a result, or keep the engine from talking to anybody.
DETERMINISM = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "MKL_CBWR": "AUTO,STRICT",  # or its sums depend on where in memory a matrix begins
    "PYTHONHASHSEED": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "PYTHONUNBUFFERED": "1",
}
OWN_PREFIX = "GIORNATA_"
# Such variables would change kernels, and so bits, or have kernels fetched from an unverified place.
COMPILER_PREFIXES = ("TORCHINDUCTOR_", "TORCHDYNAMO_")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDir:
    """The directory of compiled kernels, and the key that seals kernels for other nodes."""

    directory: Path
    key: str | None = field(default=None, repr=False)


def engine_environment(
    inherited: Mapping[str, str], *, threads: int, kernels: KernelDir | None = None
) -> dict[str, str]:
    """Return the environment of an engine: the node's without its settings (the key is one of them), and what makes
    results repeatable. Without `kernels` torch keeps compiled kernels where it likes."""
    dropped = (OWN_PREFIX, *COMPILER_PREFIXES)
    kept = {name: value for name, value in inherited.items() if not name.startswith(dropped)}
    made = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if kernels is not None:
        made["TORCHINDUCTOR_CACHE_DIR"] = str(kernels.directory)
        if kernels.key is not None:
            made["GIORNATA_COMPILE_CACHE_KEY"] = kernels.key
    return kept | DETERMINISM | made


class EngineBusy(Exception):
    """The running engine cannot do this kind, and attempts are in it."""


class Engines:
    """Runs one engine at a time: two would share the GPU's memory. `commands` maps kinds to command lines.

    Thread-safe. All engines are started by one thread of this object, for Linux ends an engine together with the
    thread that started it.
    """

    def __init__(
        self, *, commands: Mapping[str, tuple[str, ...]], launch: Launch, hello_s: float, stop_grace_s: float
    ) -> None:
        self._commands, self._launch = commands, launch
        self._hello_s, self._stop_grace_s = hello_s, stop_grace_s
        self._changing = threading.RLock()
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="engine-starter")
        self.current: EngineProcess | None = None
        self.hello: Hello | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of jobs that this node can do."""
        return tuple(self._commands)

    def ready(self, kind: str | None = None) -> EngineProcess:
        """Return a running engine that can do `kind`. None: the current engine, or that of the first kind.

        Raises InvalidInput when it cannot be started, speaks another protocol or does not know the kind, and
        EngineBusy rather than take it from those who are at work in it.
        """
        wanted = self._commands[kind or self.kinds[0]]
        with self._changing:
            current = self.current
            if current is not None and current.is_alive():
                if kind is None or current.command == wanted:
                    return current
                if current.is_in_use:
                    raise EngineBusy(f"{' '.join(current.command)} is at work")
            self.stop()
            return self._start(wanted, kind)

    def _start(self, command: tuple[str, ...], kind: str | None) -> EngineProcess:
        engine = self.current = self._starter.submit(self._launch, command).result()
        self.hello = engine.await_hello(self._hello_s)
        if kind is not None and kind not in self.hello.kinds:
            engine.kill()
            said = ", ".join(self.hello.kinds)
            raise InvalidInput(
                [Fault(where=f"engine {' '.join(command)}", message=f"runs jobs of the kinds {said}, not {kind}")]
            )
        log.info("engine %d is ready on %s for %s", engine.pid, self.hello.device, ", ".join(self.hello.kinds))
        return engine

    def stop(self) -> None:
        """End the engine, if there is one."""
        with self._changing:
            if self.current is not None and self.current.is_alive():
                self.current.shut_down(self._stop_grace_s)
            self.current = self.hello = None
