"""What the store notes of a node that makes itself known."""

from giornata.control.context import Caller
from giornata.control.ports.work_rows import NodeSighting
from giornata.protocol.work import NodeInfo


def sighting(
    caller: Caller, node: NodeInfo, *, kinds: tuple[str, ...], held_models: tuple[str, ...] = ()
) -> NodeSighting:
    """The node as it says that it is, under the project of its key."""
    return NodeSighting(
        id=node.node_id,
        project_id=caller.project_id,
        machine_id=node.machine_id,
        name=node.name,
        fleet=node.fleet,
        instance_id=node.instance_id,
        places=node.places,
        pid=node.pid,
        engine_pid=node.engine_pid,
        device=node.device,
        vram_bytes=node.vram_bytes,
        price_micro_usd_per_hour=node.price_micro_usd_per_hour,
        kinds=kinds,
        held_models=held_models,
        versions=node.versions,
    )
