"""Count the nodes that hold a model: for users, and for the words that say why an order waits."""

from collections.abc import Mapping
from typing import Any

from giornata.control.access.permissions import require_user
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.models.register import check_name
from giornata.control.pictures.route_pictures import MOST_KNOWN_BASES, see_fleet
from giornata.control.ports.store import Transaction
from giornata.domain.errors import NotFound
from giornata.domain.generation.fleet_models import BaseFiles
from giornata.domain.generation.model_routing import Holders
from giornata.protocol.generation.checks.named_models import SINGLE, named_models
from giornata.protocol.generation.expand import plain_base_key
from giornata.protocol.models import ModelCoverage

BASE_ROLES = frozenset(SINGLE.values())
MINUTE_S = 60


def model_coverage(ctx: Context, caller: Caller, name: str) -> ModelCoverage:
    """Return how many nodes hold a model of the registry. Raises Forbidden, NotFound.

    A model that the engine loads from the hub has no file of a node's store: only nodes that have it in GPU memory
    count.
    """
    require_user(caller)
    check_name(name)
    with ctx.store.read() as tx:
        model = tx.models.named(caller.project_id, [name]).get(name)
        if model is None:
            raise NotFound(f"there is no model {name}")
        fleet = see_fleet(tx, ctx, at_ms=ctx.clock.now_ms())
    key = plain_base_key(model.reference or name, model.sha256)
    sha256s = () if model.sha256 is None else (model.sha256,)
    fleet.remember_bases({key: BaseFiles(name=name, sha256s=sha256s)}, but_at_most=MOST_KNOWN_BASES)
    project_id = caller.project_id
    if model.sha256 is None:
        found = fleet.holders(key, project_id=project_id)
        disk, host = 0, 0
    else:
        found = fleet.coverage(model.sha256, project_id=project_id)
        disk, host = found.disk, found.host
    return ModelCoverage(
        name=name,
        nodes=fleet.serving(project_id),
        gpu=found.gpu,
        host=host,
        disk=disk,
        fetching=found.fetching,
    )


def missing_models(tx: Transaction, ctx: Context, project_id: str, spec: Mapping[str, Any]) -> str:
    """Say which base models and VAEs of an order no node has, and whether they are on their way; empty for none.

    Nothing is said while a node that does not report its files may have them.
    """
    wanted = {
        each.use["sha256"]: each.use["name"]
        for each in named_models(spec)
        if each.role in BASE_ROLES and each.use.get("sha256")
    }
    if not wanted:
        return ""
    fleet = see_fleet(tx, ctx, at_ms=ctx.clock.now_ms())
    if not fleet.serving(project_id) or fleet.some_do_not_report(project_id):
        return ""
    found = {sha256: fleet.coverage(sha256, project_id=project_id) for sha256 in wanted}
    now_ms = ctx.clock.now_ms()
    return "; ".join(
        _words(wanted[sha256], each, _left_s(fleet.arrives_at_ms(sha256, project_id=project_id), now_ms))
        for sha256, each in found.items()
        if not each.replicas - each.fetching
    )


def _left_s(arrives_at_ms: int | None, now_ms: int) -> float | None:
    return None if arrives_at_ms is None or arrives_at_ms <= now_ms else (arrives_at_ms - now_ms) / 1000


def _words(name: str, found: Holders, left_s: float | None) -> str:
    if not found.fetching:
        return f"no node has {name}, and none fetches it yet"
    nodes = "1 node" if found.fetching == 1 else f"{found.fetching} nodes"
    expected = "" if left_s is None else f", expected in {_duration(left_s)}"
    return f"no node has {name}; it is arriving on {nodes}{expected}"


def _duration(left_s: float) -> str:
    return f"{left_s:.0f} s" if left_s < MINUTE_S else f"{left_s / MINUTE_S:.0f} min"
