"""The reach of each scope of a key. Every query asks for the project besides."""

from giornata.control.caller import Caller
from giornata.domain.errors import Forbidden
from giornata.protocol.admin import Scope


def require_user(caller: Caller) -> None:
    """Raises Forbidden for a node's key: a node works, and sees no more than its lease."""
    if caller.scope is Scope.NODE:
        raise Forbidden("a key of scope node only claims work; use one of scope member or admin")


def require_node(caller: Caller) -> None:
    """Raises Forbidden unless the key is a node's."""
    if caller.scope is not Scope.NODE:
        raise Forbidden(f"work is claimed with a key of scope node; this one has scope {caller.scope}")


def require_same_workload(caller: Caller, *, machine_id: str, fleet: str) -> None:
    """Raises Forbidden when a provider's token names another machine or fleet than the node does.

    Otherwise a rented machine could get others banned, or free itself of its own bans, by taking other names.
    """
    workload = caller.workload
    if workload is None:
        return
    if workload.machine_id != machine_id:
        raise Forbidden(f"the token is of the machine {workload.machine_id}; the node says that it is {machine_id}")
    if workload.fleet != fleet:
        raise Forbidden(f"the token is of the fleet {workload.fleet}; the node says that it is in {fleet}")


def require_bound_fleet(caller: Caller, fleet: str) -> None:
    """Raises Forbidden when the key is bound to another fleet than the node says."""
    if caller.fleet is not None and caller.fleet != fleet:
        raise Forbidden(
            f"this key is for nodes of the fleet {caller.fleet}; the node says that it is in {fleet}: "
            f"start it with --fleet {caller.fleet}"
        )


def require_admin(caller: Caller) -> None:
    """Raises Forbidden unless the key governs its project."""
    if caller.scope is not Scope.ADMIN:
        raise Forbidden(f"this takes a key of scope admin; this one has scope {caller.scope}")


def require_root_admin(caller: Caller) -> None:
    """Raises Forbidden unless the key governs the installation."""
    if not caller.is_root_admin:
        raise Forbidden("this takes an admin key of the operator's own project")
