"""The caller's own view: what the key or the session of a request may do."""

from giornata.control.access.members import member_reply
from giornata.control.access.users import user_reply
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.protocol.account.people import Me


def caller_alone(caller: Caller) -> Me:
    """Return what is known of the caller without a question to the store: all but the person and the projects."""
    return Me(
        project_id=caller.project_id,
        scopes=tuple(sorted(caller.scopes)),
        operator=caller.is_root_admin,
        key_id=None if caller.is_session else caller.key_id,
        session_id=caller.key_id if caller.is_session else None,
        user=None,
        projects=(),
    )


def read_me(ctx: Context, caller: Caller) -> Me:
    """Return the project, the scopes, and the person behind the caller. Every key may ask."""
    with ctx.store.read() as tx:
        user = None if caller.user_id is None else tx.users.get(caller.user_id)
        members = [] if user is None or not caller.is_session else tx.memberships.of_user(user.id)
    person = None if user is None else user_reply(user)
    return caller_alone(caller).model_copy(update={"user": person, "projects": tuple(map(member_reply, members))})
