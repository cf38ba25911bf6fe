"""Say whether any node may run the models of annotators: for submissions, and for the words why an order waits."""

from collections.abc import Iterator, Mapping
from typing import Any

from giornata.control.context import Context
from giornata.control.pictures.await_annotations import kept_of
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import JobRecord
from giornata.domain.errors import Fault
from giornata.protocol.generation.awaited_annotations import CONTROLNETS, key_of, model_annotations, node_kind
from giornata.protocol.generation.expand import changes_of, order_spec
from giornata.protocol.generation.grid import GRID_KIND
from giornata.protocol.generation.preprocess import PREPROCESS_KIND, AnnotationParams

NO_NODE = f"no node for jobs of kind {PREPROCESS_KIND} is connected"
NO_FLEET = "and no fleet of this server brings one"
HINT = (
    f"start a node with --kind {PREPROCESS_KIND} (it needs giornata[{PREPROCESS_KIND}]), write {PREPROCESS_KIND} "
    "into the kinds of a fleet, or give the annotated pictures without annotator"
)


def annotator_faults(
    tx: Transaction, ctx: Context, project_id: str, kind: str, spec: Mapping[str, Any]
) -> list[Fault]:
    """Return a fault for each annotator of an order that runs a model, if nobody can run it: no connected node, no
    fleet. The spec has no other faults. Annotations that the project keeps need no node."""
    if node_kind(kind, spec) == PREPROCESS_KIND:
        wanted = {str(spec["annotator"]): "spec.annotator"}
    else:
        needed = list(_needed(kind, spec))
        kept = kept_of(tx, project_id, needed) if needed else set()
        missing = (each for each in needed if key_of(each) not in kept)
        wanted = {each.annotator: "spec.controlnets" for each in missing}
    if not wanted or _is_connected(tx, ctx, project_id):
        return []
    if any(PREPROCESS_KIND in each.kinds for each in ctx.fleets.values()):
        return []
    return [
        Fault(where=where, message=f"{name} runs a model; {NO_NODE}, {NO_FLEET}", hint=HINT)
        for name, where in wanted.items()
    ]


def missing_annotators(tx: Transaction, ctx: Context, job: JobRecord) -> str:
    """Say that pictures of the order wait for annotations that no connected node can make; empty otherwise."""
    if node_kind(job.kind, job.spec) == PREPROCESS_KIND or not (needed := list(_needed(job.kind, job.spec))):
        return ""
    kept = kept_of(tx, job.project_id, needed)
    names = sorted({each.annotator for each in needed if key_of(each) not in kept})
    if not names or _is_connected(tx, ctx, job.project_id):
        return ""
    return f"pictures wait for their annotations ({', '.join(names)}): {NO_NODE}"


def _needed(kind: str, spec: Mapping[str, Any]) -> Iterator[AnnotationParams]:
    """Yield the annotations by models that pictures of the order need. Most orders are not looked at one by one."""
    if kind == PREPROCESS_KIND:
        return
    yield from model_annotations(kind, spec, {})
    for picture in spec.get("pictures") or ():
        if CONTROLNETS in picture:
            yield from model_annotations(kind, spec, picture)
    if kind == GRID_KIND and any(str(axis.get("field")).startswith(CONTROLNETS) for axis in spec.get("axes") or ()):
        for changes in changes_of(order_spec(kind, spec), spec):
            yield from model_annotations(kind, spec, changes)


def _is_connected(tx: Transaction, ctx: Context, project_id: str) -> bool:
    since_ms = ctx.clock.now_ms() - round(ctx.policy.node_gone_after_s * 1000)
    nodes = tx.forecasts.places(kind=PREPROCESS_KIND, project_id=project_id, min_vram_bytes=0, seen_since_ms=since_ms)
    return bool(nodes)
