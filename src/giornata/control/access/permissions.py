"""The reach of roles and of scopes, in one table. Every query asks for the project besides."""

from collections.abc import Iterable, Mapping

from giornata.control.caller import Caller
from giornata.domain.errors import Forbidden
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.protocol.account.people import Role
from giornata.protocol.project.admin import USER_VERBS, Scope

# What a person of this role may do, and what keys of that person reach at most.
ROLE_SCOPES: Mapping[Role, frozenset[Scope]] = {
    Role.VIEWER: frozenset({Scope.JOBS_READ}),
    Role.MEMBER: USER_VERBS,
    Role.OWNER: USER_VERBS | {Scope.ADMIN, Scope.NODE},
}
MEMBER_TEXT = " ".join(sorted(USER_VERBS))


def verbs_of(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """Return all verbs that these scopes reach together."""
    return frozenset().union(*(scope.reach for scope in scopes))


def stored_scopes(scopes: Iterable[Scope]) -> str:
    """Return the text that a key's row keeps: one of the words `admin`, `member` and `node`, or a list of verbs."""
    verbs = verbs_of(scopes)
    if Scope.ADMIN in verbs:
        return Scope.ADMIN
    text = " ".join(sorted(verbs))
    return Scope.MEMBER if text == MEMBER_TEXT else text


def read_scopes(stored: str) -> frozenset[Scope]:
    """Return the verbs of a key's row."""
    return verbs_of(map(Scope, stored.split()))


def require_scope(caller: Caller, scope: Scope) -> None:
    """Raises Forbidden unless the caller may do this verb."""
    if scope not in caller.scopes:
        raise _refusal(caller, scope)


def require_any(caller: Caller, *scopes: Scope) -> None:
    """Raises Forbidden unless the caller may do one of these verbs."""
    if caller.scopes.isdisjoint(scopes):
        raise _refusal(caller, *scopes)


def require_user(caller: Caller) -> None:
    """Raises Forbidden for a node's key: a node works, and sees no more than its lease."""
    if caller.scopes.isdisjoint(USER_VERBS):
        raise _refusal(caller, Scope.JOBS_READ)


def require_write(caller: Caller, kind: str) -> None:
    """Raises Forbidden unless the caller may submit and end jobs of this kind."""
    scope = Scope.GENERATE if kind in ORDER_KINDS else Scope.JOBS_WRITE
    if scope not in caller.scopes:
        raise _refusal(caller, scope)


def require_node(caller: Caller) -> None:
    """Raises Forbidden unless the key is a node's."""
    if Scope.NODE not in caller.scopes:
        raise Forbidden(f"work is claimed with a key of scope node; this one has {_said(caller)}")


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
    """Raises Forbidden unless the caller governs the project: an admin key, or a session of an owner."""
    if Scope.ADMIN not in caller.scopes:
        raise _refusal(caller, Scope.ADMIN)


def require_root_admin(caller: Caller) -> None:
    """Raises Forbidden unless the caller governs the installation."""
    if not caller.is_root_admin:
        raise Forbidden("this takes an admin key of the operator's own project, or the session of an operator")


def _refusal(caller: Caller, *wanted: Scope) -> Forbidden:
    if caller.scopes == {Scope.NODE}:
        return Forbidden("a key of scope node only claims work; use one of scope member or admin")
    names = " or ".join(wanted)
    if caller.is_session:
        return Forbidden(f"this takes the scope {names}; your role in the project has {_said(caller)}")
    return Forbidden(f"this takes a key of scope {names}; this one has {_said(caller)}")


def _said(caller: Caller) -> str:
    return f"scope {stored_scopes(caller.scopes)}" if caller.scopes else "no scope"
