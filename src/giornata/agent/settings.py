"""The settings of a node and of its attempts."""

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from giornata.agent.engines.engines import KernelDir
from giornata.agent.work_dir import KERNEL_DIRECTORY
from giornata.domain.errors import Fault
from giornata.domain.generation.picture import NODE_KINDS, ORDER_KINDS
from giornata.protocol.generation.preprocess import PREPROCESS_KIND
from giornata.protocol.generation.specs import GENERATE_KIND
from giornata.protocol.specs import AUDIT_KIND, CANARY_KIND, KINDS, OWN_KIND_PREFIX, PLATFORM_KINDS, VALIDATE_KIND
from giornata.protocol.training.optimization import Compile

GIB = 2**30
LEAST_KEY_LETTERS = 32
LEASED_KINDS = (GENERATE_KIND, PREPROCESS_KIND)
"""Kinds of nodes that lease pictures: those that draw them, and those that run models to annotate them."""
DRAWING = frozenset({"train", GENERATE_KIND})
"""Kinds whose nodes also draw the validations of training jobs."""
BUILT_IN = (sys.executable, "-m", "giornata.engine")


def draw_node_id() -> str:
    """Draw a name for a process of a node: `node_` and 16 hex digits."""
    return f"node_{secrets.token_hex(8)}"


def engine_command(
    kinds: Sequence[str],
    *,
    threads: int,
    device: str,
    model_cache_bytes: int | None = None,
    host_model_bytes: int = 0,
    compile: Compile = Compile.AUTO,
    places: int = 1,
    engine: tuple[str, ...] = BUILT_IN,
) -> tuple[str, ...]:
    """Return the command line of the built-in engine, or of another `engine` that understands the same options.

    Without `model_cache_bytes` the engine keeps all models that it fetches, and without `host_model_bytes` none in
    host memory. Up to `places` jobs may share a batch. `compile` is for pictures.
    """
    bound = () if model_cache_bytes is None else ("--model-cache-bytes", str(model_cache_bytes))
    bound = (*bound, "--host-model-bytes", str(host_model_bytes)) if host_model_bytes else bound
    bound = (*bound, "--compile", compile.value) if compile is not Compile.AUTO else bound
    return (
        *(*engine, "--kinds", ",".join(kinds)),
        *("--threads", str(threads), "--device", device, "--places", str(places)),
        *bound,
    )


def is_built_in(command: Sequence[str]) -> bool:
    """Return whether this command starts the engine that comes with Giornata."""
    return tuple(command[: len(BUILT_IN)]) == BUILT_IN


def faults_of_workloads(workloads: Mapping[str, Sequence[str]]) -> list[Fault]:
    """Return the faults of custom kinds: invalid names and missing commands."""
    found = [
        Fault(where=f"workloads.{kind}", message="is not a name for a kind of your own", hint="start it with x-")
        for kind in workloads
        if not kind.startswith(OWN_KIND_PREFIX)
    ]
    found += [
        Fault(where=f"workloads.{kind}", message="has no command", hint="write the command line of its program")
        for kind, command in workloads.items()
        if not command
    ]
    return found


def faults_of_kinds(kinds: Sequence[str], workloads: Mapping[str, object], *, where: str = "kinds") -> list[Fault]:
    """Return the faults of kinds that no engine of this node can do. `where` is the setting that names the kinds."""
    found = [
        Fault(
            where=where,
            message=f"{kind!r} is a kind of your own and has no command",
            hint=f"name its program: --workload '{kind}=COMMAND', or {kind} = \"COMMAND\" below [workloads]",
        )
        for kind in kinds
        if kind.startswith(OWN_KIND_PREFIX) and kind not in workloads
    ]
    of_nodes = [kind for kind in KINDS if kind not in ORDER_KINDS or kind in LEASED_KINDS]
    known = f"there are {', '.join(of_nodes)}; one of your own starts with {OWN_KIND_PREFIX}"
    return found + [
        Fault(where=where, message=f"there is no kind {kind!r}", hint=known)
        for kind in kinds
        if kind not in (*of_nodes, *PLATFORM_KINDS, *workloads) and not kind.startswith(OWN_KIND_PREFIX)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSettings:
    """The time limits for the parts of an attempt, on every platform."""

    grace_s: float = 25.0  # from the order to leave to the end of the process
    release_s: float = 120.0  # for the checkpoint of one job that the server wants back while the node stays
    stop_grace_s: float = 10.0  # for an engine that was told to stop and write nothing
    alive_s: float = 30.0
    stall_s: float = 600.0
    fail_drain_s: float = 60.0  # for checkpoints still on their way when an attempt has failed


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings(AttemptSettings):
    """One node. `kinds` are those it takes; `workloads` maps own kinds (`x-…`), which need not be among `kinds` as
    well, to the command that is their engine. At most `places` attempts are in an engine at a time.

    `give_up_after_s`: the node ends, with an error, when the server has not answered for this long while no job
    is in hand. None: it asks for ever. `compile_cache_key` seals compiled kernels that are shared with other nodes.
    """

    url: str
    key: str = field(repr=False)
    bearer: Callable[[], str] | None = field(default=None, repr=False)  # gives what is sent instead of a key
    machine_id: str
    name: str
    work_dir: Path
    node_id: str = field(default_factory=draw_node_id)
    fleet: str = "local"
    instance_id: str | None = None  # what the provider calls the container or process
    price_micro_usd_per_hour: int = 0
    kinds: tuple[str, ...] = NODE_KINDS
    workloads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    engine: tuple[str, ...] = BUILT_IN  # starts the engine of all kinds but one's own
    threads: int = 1
    model_cache_bytes: int = 100 * 2**30
    shared_compile_cache: bool = False
    compile_cache_key: str | None = field(default=None, repr=False)
    device: str = "auto"
    places: int = 1
    max_pictures: int = 16  # of one lease
    claim_wait_s: float = 5.0
    companion_every_s: float = 2.0  # between two claims for jobs that may join those at work
    join_for_s: float = 3600.0  # after the first job of a batch; then it has to become empty, for others wait as well
    hello_s: float = 300.0  # loading torch from a cold disk takes minutes on a rented machine
    unfit_s: float = 600.0  # how long claims may pause because disk or GPU memory is short; then the node leaves
    transfer_patience_s: float = 600.0  # how long one file may be refused by storage before that is a failure
    cache_bytes: int = 20 * GIB
    model_store_bytes: int = 100 * GIB
    host_model_bytes: int = 0
    compile: Compile = Compile.AUTO
    give_up_after_s: float | None = None
    environment: Mapping[str, str] | None = None

    def engine_commands(self) -> dict[str, tuple[str, ...]]:
        """Return the engine's command for each kind. Kinds with equal commands share one engine."""
        kinds = tuple(kind for kind in self.kinds if kind not in self.workloads)
        # Jobs of the platform's own kinds: what draws can validate, and every engine of ours can try out its machine.
        own = ([VALIDATE_KIND] if DRAWING.intersection(kinds) else []) + ([CANARY_KIND] if kinds else [])
        own += [AUDIT_KIND] if "train" in kinds else []
        kinds = tuple(dict.fromkeys((*kinds, *own)))
        built_in = engine_command(
            kinds,
            threads=self.threads,
            device=self.device,
            model_cache_bytes=self.model_cache_bytes,
            host_model_bytes=self.host_model_bytes,
            compile=self.compile,
            places=self.places,
            engine=self.engine,
        )
        return dict.fromkeys(kinds, built_in) | {kind: tuple(own) for kind, own in self.workloads.items()}

    def kernels(self) -> KernelDir:
        """Return the place of compiled kernels, which outlive engines and nodes."""
        key = self.compile_cache_key if self.shared_compile_cache else None
        return KernelDir(directory=self.work_dir.absolute() / KERNEL_DIRECTORY, key=key)

    def faults(self) -> tuple[Fault, ...]:
        """Return every fault of these settings."""
        found = [*faults_of_workloads(self.workloads), *faults_of_kinds(self.kinds, self.workloads)]
        if self.shared_compile_cache and len(self.compile_cache_key or "") < LEAST_KEY_LETTERS:
            message = f"has to have at least {LEAST_KEY_LETTERS} letters for shared_compile_cache"
            hint = (
                "draw one (openssl rand -hex 32), and give it to nodes that you trust with code, and to nothing else"
            )
            found.append(Fault(where="compile_cache_key", message=message, hint=hint))
        if not self.kinds and not self.workloads:
            found.append(
                Fault(
                    where="kinds",
                    message="no kind of job is named",
                    hint="name one, such as train, or a workload of your own",
                )
            )
        if not self.url.startswith(("http://", "https://")):
            message = f"{self.url!r} is not the address of a server" if self.url else "is missing"
            found.append(Fault(where="url", message=message, hint="such as https://giornata.example"))
        if not self.key and self.bearer is None:
            found.append(
                Fault(where="key", message="is missing", hint="make one with: giornata key create --scope node")
            )
        return tuple(found)
