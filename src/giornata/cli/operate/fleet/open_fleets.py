"""Puts fleets together from settings, and closes them when the server ends."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from giornata.agent.settings import faults_of_kinds, faults_of_workloads
from giornata.cli.operate.composition import NODE_KEY_FILE
from giornata.cli.options import workload_commands
from giornata.cli.settings import Settings
from giornata.cli.settings.fleet_settings import FleetTable
from giornata.cli.settings.private_files import write_private
from giornata.control.access.keys import create_key
from giornata.control.caller import Caller
from giornata.control.context import Context, GovernedFleet
from giornata.control.fleet_loops import forget_asked
from giornata.control.fleets.nodes import seen_nodes
from giornata.control.ports.fleet import Instance, InstanceState
from giornata.domain.errors import Fault, InvalidInput, collecting
from giornata.domain.fleets.fleet_plan import ScalingPolicy
from giornata.fleets.opening import FleetDependencies, NodeWork, identities_of, open_driver, read_options
from giornata.protocol.project.admin import ROOT_PROJECT, CreateKey, Scope

LOCAL_FLEET = "local"
# Idle processes of one's own machine cost little, and each holds a model that the next job needs.
KEPT = {"surplus_idle_s": ScalingPolicy().idle_timeout_s}
# What the server is told by its environment and its nodes have no use for.
OF_SERVERS_ALONE = frozenset(
    f"GIORNATA_{name}"
    for name in (
        *("ADMIN_KEY", "ADMIN_KEY_FILE", "API_KEY", "SECRETS_KEY"),
        *("DATABASE", "BLOBS", "S3_ACCESS_KEY_ID", "S3_SECRET_ACCESS_KEY"),
    )
)


@dataclass(slots=True, kw_only=True)
class OpenFleets:
    """The fleets that loops manage, and the local fleet of a fixed size, which needs no loop."""

    context: Context
    fixed: GovernedFleet | None = None
    fixed_nodes: int = 0
    _closed: bool = False

    def start(self) -> None:
        """Start what needs no loop. The server answers already."""
        if self.fixed is not None:
            self.fixed.fleet.desired(self.fixed_nodes)

    def close(self) -> None:
        """Let go of every fleet; local nodes write their last checkpoints. May be repeated."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as closing:
            for each in (*self.context.fleets.values(), *filter(None, [self.fixed])):
                closing.callback(each.fleet.close)


def own_nodes(settings: Settings) -> range:
    """Fewest and most nodes that `up` runs on this machine: both are `nodes`, unless max_nodes lets them vary.

    Where max_nodes or a fleet is in the settings, none has to run: `nodes` counts if somebody gave it. Raises
    InvalidInput for more at least than at most.
    """
    asked = "nodes" in settings.model_fields_set
    fewest = settings.nodes if asked or not (settings.max_nodes or settings.fleets) else 0
    most = fewest if settings.max_nodes is None else settings.max_nodes
    if most < fewest:
        message = f"{fewest} are the fewest nodes, and max_nodes allows {most}"
        raise InvalidInput([Fault(where="nodes", message=message, hint="raise max_nodes, or lower nodes")])
    return range(fewest, most + 1)


def open_fleets(settings: Settings, context: Context, address: Callable[[], str], *, own: range | None) -> OpenFleets:
    """The fleets of the settings, and this machine's own nodes: a number of them, or as many as the queue needs, from
    the first to the last of `own`; None: none, ever.

    Raises InvalidInput with the faults of all fleets.
    """
    tables = dict(settings.fleets)
    fixed = own[0] if own is not None and len(own) == 1 else None
    varying = own if own is not None and len(own) > 1 else None
    faults = [*_faults_of_local(settings, varying), *_faults_of_work(settings, on_machine=bool(own and own[-1]))]
    if varying is not None and LOCAL_FLEET not in tables:
        tables[LOCAL_FLEET] = _table_of_machine(settings, varying)
    governed = {}
    dependencies = partial(_dependencies, settings, context, address)
    for name, table in tables.items():
        with collecting(faults):
            governed[name] = _open(name, table, dependencies(table))
    if faults:
        raise InvalidInput(faults)
    for name, each in governed.items():
        if each.driver == "local":
            forget_asked(context, name)
    still = None
    if fixed is not None:
        table = _table_of_machine(settings, range(fixed, fixed + 1))
        still = _open(LOCAL_FLEET, table, dependencies(table))
    identities = identities_of(each.fleet for each in governed.values())
    whole = replace(context, fleets=governed, identities=identities)
    return OpenFleets(context=whole, fixed=still, fixed_nodes=fixed or 0)


def _faults_of_local(settings: Settings, varying: range | None) -> list[Fault]:
    """Processes of one server are nothing to another one."""
    local = [name for name, table in settings.fleets.items() if table.driver == "local"]
    faults = []
    if varying is not None and LOCAL_FLEET in settings.fleets:
        faults.append(
            Fault(
                where="fleets.local", message="the setting max_nodes makes a fleet named local, too; rename this one"
            )
        )
    if (settings.database or "").startswith("postgres"):
        hint = "run giornata node on the machine, as part of a fleet with the driver static"
        message = "nodes in a server's own care need a server of their own: a database of SQLite"
        faults += [Fault(where=f"fleets.{name}.driver", message=message, hint=hint) for name in local]
        faults += [Fault(where="max_nodes", message=message, hint=hint)] if varying is not None else []
    return faults


def _faults_of_work(settings: Settings, *, on_machine: bool) -> list[Fault]:
    """Faults in kinds and workloads that would end every started node at once, again and again."""
    kinds = {f"fleets.{name}.kinds": each.kinds for name, each in settings.fleets.items() if _starts_nodes(each)}
    kinds |= {"kinds": settings.kinds} if on_machine else {}
    if not kinds:
        return []
    faults = list[Fault]()
    with collecting(faults):
        faults += faults_of_workloads(workload_commands(settings.workloads))
    for where, named in kinds.items():
        faults += faults_of_kinds(named, settings.workloads, where=where)
    return faults


def _starts_nodes(table: FleetTable) -> bool:
    """Return True when the server chooses the command of the fleet's nodes.

    Machines that others own, and a workload that the operator made, bring the commands of their own kinds.
    """
    return table.driver != "static" and not (table.driver == "kubernetes" and not table.options.get("image"))


def _table_of_machine(settings: Settings, own: range) -> FleetTable:
    most = own[-1]
    return FleetTable.model_validate(
        {
            "driver": "local",
            "kinds": tuple(dict.fromkeys((*settings.kinds, *settings.workloads))),
            "places": settings.places,
            "scaling": {"min_nodes": own[0], "max_nodes": most, "max_scale_up": max(1, most), **KEPT},
            "options": {
                "price_usd_per_hour": settings.price_usd_per_hour,
                "grace_s": settings.shutdown_grace_s + 5.0,
            },
        }
    )


def _open(name: str, table: FleetTable, dependencies: FleetDependencies) -> GovernedFleet:
    where = f"fleets.{name}"
    module = open_driver(table.driver, where=where)
    options = read_options(module, table.options, where=f"{where}.options")
    policy: ScalingPolicy = table.scaling.policy()
    return GovernedFleet(
        name=name,
        driver=table.driver,
        fleet=module.open_fleet(name, options, dependencies),
        kinds=table.kinds,
        vram_bytes=table.vram_bytes,
        places=table.places,
        scaling=policy,
        thresholds=table.checks.thresholds(),
    )


def _dependencies(
    settings: Settings, context: Context, address: Callable[[], str], table: FleetTable
) -> FleetDependencies:
    return FleetDependencies(
        server_url=address,
        node_key=partial(_node_key, settings.data, context),
        data=settings.data,
        environment={name: value for name, value in os.environ.items() if name not in OF_SERVERS_ALONE},
        now_ms=context.clock.now_ms,
        work=work_of(settings, table),
        node_flags=tuple(_node_flags(settings)),
        seen=partial(_seen, context),
    )


def _node_key(data: Path, context: Context) -> str:
    """The key of the fleets' nodes: made once, kept beside the database."""
    file = data / NODE_KEY_FILE
    if not file.exists():
        operator = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="installation")
        created = create_key(context, operator, CreateKey(scope=Scope.NODE, name="nodes of this installation"))
        write_private(file, created.secret + "\n")
    return file.read_text().strip()


def work_of(settings: Settings, table: FleetTable) -> NodeWork:
    """The kinds, places and own commands of the fleet's nodes."""
    own = {kind: program for kind, program in settings.workloads.items() if kind in table.kinds}
    return NodeWork(kinds=table.kinds, places=table.places, workloads=own)


def _node_flags(settings: Settings) -> list[str]:
    """Further options of the nodes on the server's machine."""
    flags = [
        "--device",
        settings.device,
        "--threads",
        str(settings.threads),
        "--grace",
        str(settings.shutdown_grace_s),
    ]
    flags += ["--model-cache-bytes", str(settings.model_cache_bytes), "--log-format", settings.log_format]
    return [*flags, "--shared-compile-cache"] if settings.shared_compile_cache else flags


def _seen(context: Context, name: str) -> Sequence[Instance]:
    """Return the nodes of a fleet whose machines the server does not start: each is its own instance."""
    return [
        Instance(
            id=node.instance_id or node.id,
            state=InstanceState.RUNNING,
            name=node.name,
            machine_id=node.machine_id,
            running_since_ms=node.first_seen_at_ms,
        )
        for node in seen_nodes(context, name)
    ]
