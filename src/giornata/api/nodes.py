"""Routes of single nodes, for whoever operates the installation. The list of nodes is in `giornata.api.admin`."""

from typing import Annotated

from fastapi import APIRouter, Path

from giornata.api.callers import Ctx, User, Wake
from giornata.api.openapi import USER_CHANGE
from giornata.control import nodes
from giornata.protocol.admin import Node

router = APIRouter(prefix="/v1/nodes", tags=["administration"])

NodeId = Annotated[str, Path(max_length=64)]


@router.post("/{node_id}/drain", responses=USER_CHANGE)
def drain_node(ctx: Ctx, caller: User, wakeup: Wake, node_id: NodeId) -> Node:
    """No more jobs for it: it gives back those that it has, after a checkpoint, and leaves. Root admin only."""
    node = nodes.drain_node(ctx, caller, node_id)
    wakeup.notify()
    return node


@router.post("/{node_id}/undrain", responses=USER_CHANGE)
def undrain_node(ctx: Ctx, caller: User, wakeup: Wake, node_id: NodeId) -> Node:
    """It may have jobs again, if it has not left yet. Root admin only."""
    node = nodes.undrain_node(ctx, caller, node_id)
    wakeup.notify()
    return node
