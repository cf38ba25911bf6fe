"""The reach of a person in a project, which bounds the person's sessions, keys and invitations."""

from giornata.control.access.permissions import ROLE_SCOPES
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.people_store import UserRecord
from giornata.protocol.account.people import Role
from giornata.protocol.project.admin import Scope

NOTHING: frozenset[Scope] = frozenset()


def reach_of_person(tx: Transaction, user_id: str, project_id: str) -> frozenset[Scope]:
    """Return all that the person may do in the project now; an operator has the reach of an owner everywhere."""
    return reach_of_user(tx, tx.users.get(user_id), project_id)


def reach_of_user(tx: Transaction, user: UserRecord | None, project_id: str) -> frozenset[Scope]:
    """Return what `reach_of_person` does, of a person who was read in this transaction."""
    if user is None or user.deactivated_at_ms is not None:
        return NOTHING
    return reach_of_role(None if user.operator else tx.memberships.role(user.id, project_id), operator=user.operator)


def reach_of_role(role: str | None, *, operator: bool) -> frozenset[Scope]:
    """Return the reach of somebody with this role in a project; None: with none."""
    if operator:
        return ROLE_SCOPES[Role.OWNER]
    return NOTHING if role is None else ROLE_SCOPES[Role(role)]
