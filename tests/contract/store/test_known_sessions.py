"""Sessions that a server knows are checked together, and each ends as soon as if it were checked alone."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.fixtures.contexts import ManualClock
from tests.fixtures.people import ROOT, new_person, signed_in_at
from tests.fixtures.rows_read import sent_statements
from tests.fixtures.users import move_in

from giornata.control.access.authenticate import remembered_person, require_standing, signed_in
from giornata.control.access.members import remove_member, set_member
from giornata.control.access.signing_in.renewal import SESSION_KEPT_MS
from giornata.control.access.signing_in.sessions import IDLE_MS, USE_NOTED_EVERY_MS, end_session
from giornata.control.access.users import change_user
from giornata.control.context import Context
from giornata.control.end_of_life.delete_project import delete_project
from giornata.control.memory.known_sessions import LATELY_MS
from giornata.control.memory.process_cache import ProcessCache
from giornata.domain.errors import NotFound, Unauthenticated
from giornata.protocol.account.people import ChangeUser, Role, SetMember, User
from giornata.protocol.project.admin import ROOT_PROJECT, Scope

PEOPLE = 20
KEPT_S = SESSION_KEPT_MS / 1000


@pytest.fixture
def two_projects(ctx: Context) -> Context:
    """The projects of ANN and BOB."""
    move_in(ctx)
    return ctx


def other_server(ctx: Context) -> Context:
    """A replica over the same store, which hears of nothing but from there."""
    return replace(ctx, memory=ProcessCache())


def test_statements_that_check_sessions_do_not_grow_with_people(two_projects: Context, clock: ManualClock) -> None:
    people = [new_person(two_projects, f"p{number}", {"ann": Role.MEMBER}) for number in range(PEOPLE)]
    secrets = [signed_in_at(two_projects, each).secret for each in people]
    callers = [signed_in(two_projects, each, "ann") for each in secrets]
    for _ in range(3):
        clock.advance_s(KEPT_S)
        with sent_statements() as sent:
            for caller in callers:
                require_standing(two_projects, caller)
            assert [signed_in(two_projects, each, "ann") for each in secrets] == callers
            assert [remembered_person(two_projects, each, "ann") for each in secrets] == callers
        assert len(sent.statements) == 2


def signs_out(ctx: Context, user: User, session_id: str) -> None:
    caller = next(each for each in ctx.memory.sessions._good if each.key_id == session_id)
    end_session(ctx, caller, session_id)


ENDS: dict[str, Callable[[Context, User, str], object]] = {
    "leaves": lambda ctx, user, _: remove_member(ctx, ROOT, "ann", user.id),
    "is deactivated": lambda ctx, user, _: change_user(ctx, ROOT, user.id, ChangeUser(active=False)),
    "signs out": signs_out,
    "loses the project": lambda ctx, *_: delete_project(ctx, ROOT, "ann", confirm="ann"),
}


@pytest.mark.parametrize("lose", ENDS)
def test_session_that_another_server_knows_ends_though_others_are_renewed_when_its_person(
    two_projects: Context, clock: ManualClock, lose: str
) -> None:
    eve, kim = (new_person(two_projects, name, {"ann": Role.OWNER, "bob": Role.OWNER}) for name in ("eve", "kim"))
    opened, other = signed_in_at(two_projects, eve), signed_in_at(two_projects, kim)
    replica = other_server(two_projects)
    for server in (two_projects, replica):
        caller, stays = signed_in(server, opened.secret, "ann"), signed_in(server, other.secret, "bob")
    ENDS[lose](two_projects, eve, opened.reply.session.id)
    clock.advance_s(KEPT_S)
    assert signed_in(replica, other.secret, "bob") == stays
    assert remembered_person(replica, opened.secret, "ann") is None
    with pytest.raises((Unauthenticated, NotFound)):
        signed_in(replica, opened.secret, "ann")
    with pytest.raises(Unauthenticated):
        require_standing(replica, caller)


def test_person_with_another_role_has_its_rights_after_the_check(two_projects: Context, clock: ManualClock) -> None:
    eve = new_person(two_projects, "eve", {"ann": Role.VIEWER})
    secret, replica = signed_in_at(two_projects, eve).secret, other_server(two_projects)
    viewer = signed_in(replica, secret, "ann")
    set_member(two_projects, ROOT, "ann", eve.id, SetMember(role=Role.OWNER))
    clock.advance_s(KEPT_S)
    assert Scope.ADMIN in signed_in(replica, secret, "ann").scopes - viewer.scopes
    require_standing(replica, viewer)  # it may do more, not less


def test_operator_is_let_into_every_project_that_is_there(two_projects: Context, clock: ManualClock) -> None:
    operator = signed_in_at(two_projects, new_person(two_projects, "kim", operator=True)).secret
    callers = [signed_in(two_projects, operator, project_id) for project_id in ("ann", ROOT_PROJECT)]
    clock.advance_s(KEPT_S)
    with sent_statements() as sent:
        assert [signed_in(two_projects, operator, each.project_id) for each in callers] == callers
    assert len(sent.statements) == 2


def test_session_that_is_used_lives_on_and_one_that_is_not_ends(two_projects: Context, clock: ManualClock) -> None:
    eve = new_person(two_projects, "eve", {"ann": Role.MEMBER})
    used, idle = signed_in_at(two_projects, eve).secret, signed_in_at(two_projects, eve).secret
    for secret in (used, idle):
        signed_in(two_projects, secret, "ann")
    for _ in range(3):
        clock.advance_s((IDLE_MS - USE_NOTED_EVERY_MS) / 1000)
        signed_in(two_projects, used, "ann")
    with pytest.raises(Unauthenticated):
        signed_in(two_projects, idle, "ann")


def test_stream_alone_does_not_keep_a_session_alive(two_projects: Context, clock: ManualClock) -> None:
    eve = new_person(two_projects, "eve", {"ann": Role.MEMBER})
    caller = signed_in(two_projects, signed_in_at(two_projects, eve).secret, "ann")
    for _ in range(3):
        clock.advance_s(IDLE_MS / 3000)
        if clock.now_ms() < caller_ends_ms(two_projects, caller.key_id):
            require_standing(two_projects, caller)
    with pytest.raises(Unauthenticated):
        require_standing(two_projects, caller)


def caller_ends_ms(ctx: Context, session_id: str) -> int:
    with ctx.store.read() as tx:
        session = tx.sessions.get(session_id)
    assert session is not None
    return session.last_used_at_ms + IDLE_MS


def test_session_that_asks_for_nothing_is_forgotten(two_projects: Context, clock: ManualClock) -> None:
    people = [new_person(two_projects, name, {"ann": Role.MEMBER}) for name in ("eve", "kim")]
    gone, there = (signed_in_at(two_projects, each).secret for each in people)
    for secret in (gone, there):
        signed_in(two_projects, secret, "ann")
        signed_in(two_projects, secret, "ann")
    clock.advance_s(LATELY_MS / 1000)
    signed_in(two_projects, there, "ann")
    asked = two_projects.memory.sessions.asked_lately(at_ms=clock.now_ms())
    assert [each.user_id for each in asked] == [people[1].id]
    assert signed_in(two_projects, gone, "ann").user_id == people[0].id
