"""People, their roles, and what becomes of their keys and sessions when they lose them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa
from tests.fixtures.contexts import ManualClock
from tests.fixtures.people import HOME, PASSWORD, ROOT, new_person, signed_in_at
from tests.fixtures.users import ANN, ANN_ADMIN, ANNS_NODE, BOB, have, move_in, new_dataset, new_job

from giornata.api.settings import ApiSettings
from giornata.control.access.authenticate import (
    KEPT_MS,
    STANDING_KEPT_MS,
    authenticate,
    require_standing,
    signed_in,
)
from giornata.control.access.invitations import (
    accept_invitation,
    create_invitation,
    list_invitations,
    revoke_invitation,
)
from giornata.control.access.keys import create_key, list_keys, revoke_key, rotate_key
from giornata.control.access.me import read_me
from giornata.control.access.members import list_members, remove_member, set_member
from giornata.control.access.signing_in.renewal import SESSION_KEPT_MS
from giornata.control.access.signing_in.sessions import (
    IDLE_MS,
    KEPT_AFTER_MS,
    SESSION_MS,
    OpenedSession,
    Visitor,
    end_session,
    list_sessions,
)
from giornata.control.access.signing_in.sign_in import change_password, sign_in
from giornata.control.access.users import change_user, create_user, list_users
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.retry import retry
from giornata.control.jobs.stop_job import cancel
from giornata.control.memory.process_cache import ProcessCache
from giornata.control.models.register import add_model
from giornata.control.storage.datasets import get_dataset
from giornata.domain.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    SignInDelayed,
    Unauthenticated,
)
from giornata.protocol.account.people import (
    AcceptInvitation,
    ChangePassword,
    ChangeUser,
    CreateInvitation,
    CreateUser,
    Role,
    SetMember,
    SignIn,
    User,
)
from giornata.protocol.models import AddModel
from giornata.protocol.project.admin import USER_VERBS, CreatedKey, CreateKey, RotateKey, Scope
from giornata.store.schema import failed_sign_ins, sessions

WITHIN_MS = 5_000
ELSEWHERE = Visitor(address="198.51.100.4", agent="curl")


@pytest.fixture
def two_projects(ctx: Context) -> Context:
    """The projects of ANN and BOB."""
    move_in(ctx)
    return ctx


def caller_of(ctx: Context, user: User, project_id: str | None = None) -> Caller:
    return signed_in(ctx, signed_in_at(ctx, user).secret, project_id)


def key_of(ctx: Context, caller: Caller, *scopes: Scope) -> CreatedKey:
    return create_key(ctx, caller, CreateKey(scopes=scopes))


def other_server(ctx: Context) -> Context:
    """A replica over the same store, which hears of nothing but from there."""
    return replace(ctx, memory=ProcessCache())


def demoted(ctx: Context, user: User) -> None:
    set_member(ctx, ROOT, "ann", user.id, SetMember(role=Role.VIEWER))


def removed(ctx: Context, user: User) -> None:
    remove_member(ctx, ROOT, "ann", user.id)


def deactivated(ctx: Context, user: User) -> None:
    change_user(ctx, ROOT, user.id, ChangeUser(active=False))


@pytest.mark.parametrize("lose", [removed, deactivated])
def test_key_and_session_of_person_who_leaves_end_everywhere_within_five_seconds(
    two_projects: Context, clock: ManualClock, lose: object
) -> None:
    user = new_person(two_projects, "eve", {"ann": Role.OWNER})
    opened = signed_in_at(two_projects, user)
    session = signed_in(two_projects, opened.secret, "ann")
    secrets = [key_of(two_projects, session, Scope.MEMBER).secret, key_of(two_projects, session, Scope.NODE).secret]
    admin = key_of(two_projects, session, Scope.ADMIN)
    # A key that a key of hers made falls with her as well.
    secrets += [admin.secret, key_of(two_projects, authenticate(two_projects, admin.secret), Scope.JOBS_READ).secret]
    replica = other_server(two_projects)
    for server in (two_projects, replica):
        callers = [authenticate(server, secret) for secret in secrets]
        signed_in(server, opened.secret, "ann")
        for caller in (*callers, session):
            require_standing(server, caller)
    lose(two_projects, user)  # type: ignore[operator]
    assert_refused(two_projects, secrets, opened.secret, [*callers, session])
    clock.advance_s(WITHIN_MS / 1000)
    assert_refused(replica, secrets, opened.secret, [*callers, session])


def assert_refused(server: Context, secrets: list[str], session: str, standing: list[Caller]) -> None:
    for secret in secrets:
        with pytest.raises(Unauthenticated):
            authenticate(server, secret)
    with pytest.raises((Unauthenticated, NotFound)):
        signed_in(server, session, "ann")
    for caller in standing:
        with pytest.raises(Unauthenticated):
            require_standing(server, caller)


def test_cached_caller_is_younger_than_five_seconds() -> None:
    looks_every_ms = ApiSettings().stream_poll_s * 1000
    assert KEPT_MS < WITHIN_MS
    assert max(STANDING_KEPT_MS, SESSION_KEPT_MS) + looks_every_ms < WITHIN_MS


def test_key_of_person_who_is_demoted_loses_what_the_person_lost(two_projects: Context) -> None:
    user = new_person(two_projects, "eve", {"ann": Role.OWNER})
    session = caller_of(two_projects, user, "ann")
    admin, reader = key_of(two_projects, session, Scope.ADMIN), key_of(two_projects, session, Scope.JOBS_READ)
    node, before = key_of(two_projects, session, Scope.NODE), authenticate(two_projects, admin.secret)
    demoted(two_projects, user)
    assert authenticate(two_projects, admin.secret).scopes == {Scope.JOBS_READ}
    assert authenticate(two_projects, reader.secret).scopes == {Scope.JOBS_READ}
    for gone in (lambda: authenticate(two_projects, node.secret), lambda: require_standing(two_projects, before)):
        with pytest.raises(Unauthenticated):
            gone()
    set_member(two_projects, ROOT, "ann", user.id, SetMember(role=Role.MEMBER))
    assert authenticate(two_projects, reader.secret).scopes == {Scope.JOBS_READ}, (
        "a key has no more than it was given"
    )


def test_caller_with_fewer_scopes_does_not_keep_one_with_more(two_projects: Context, clock: ManualClock) -> None:
    user = new_person(two_projects, "eve", {"ann": Role.OWNER})
    secret, replica = signed_in_at(two_projects, user).secret, other_server(two_projects)
    owner = signed_in(replica, secret, "ann")
    require_standing(replica, owner)
    demoted(two_projects, user)
    clock.advance_s(STANDING_KEPT_MS / 1000)
    viewer = signed_in(replica, secret, "ann")
    assert viewer.scopes < owner.scopes
    require_standing(replica, viewer)
    with pytest.raises(Unauthenticated):
        require_standing(replica, owner)


def test_key_of_person_who_left_stays_revoked_when_the_person_comes_back(two_projects: Context) -> None:
    user = new_person(two_projects, "eve", {"ann": Role.MEMBER, "bob": Role.MEMBER})
    there = key_of(two_projects, caller_of(two_projects, user, "bob"), Scope.JOBS_READ)
    made = key_of(two_projects, caller_of(two_projects, user, "ann"), Scope.JOBS_READ)
    removed(two_projects, user)
    set_member(two_projects, ROOT, "ann", user.id, SetMember(role=Role.OWNER))
    with pytest.raises(Unauthenticated):
        authenticate(two_projects, made.secret)
    assert authenticate(two_projects, there.secret).project_id == "bob"


@pytest.mark.parametrize(
    ("role", "good", "beyond"),
    [
        (Role.VIEWER, [Scope.JOBS_READ], [Scope.JOBS_WRITE, Scope.MEMBER, Scope.ADMIN, Scope.NODE]),
        (Role.MEMBER, [Scope.MEMBER, Scope.GENERATE], [Scope.ADMIN, Scope.NODE]),
        (Role.OWNER, [Scope.ADMIN, Scope.NODE, Scope.MEMBER], []),
    ],
)
def test_person_makes_keys_of_the_own_reach_and_no_further(
    two_projects: Context, role: Role, good: list[Scope], beyond: list[Scope]
) -> None:
    caller = caller_of(two_projects, new_person(two_projects, "eve", {"ann": role}))
    for scope in good:
        assert authenticate(two_projects, key_of(two_projects, caller, scope).secret).scopes == scope.reach
    for scope in beyond:
        with pytest.raises(Forbidden, match="further than you"):
            key_of(two_projects, caller, scope)
    with pytest.raises(NotFound):
        create_key(two_projects, caller, CreateKey(scopes=(Scope.JOBS_READ,), project_id="bob"))


def test_key_that_governs_nothing_makes_no_key(two_projects: Context) -> None:
    caller = authenticate(two_projects, key_of(two_projects, ANN_ADMIN, *USER_VERBS).secret)
    for verb in (
        lambda: key_of(two_projects, caller, Scope.JOBS_READ),
        lambda: list_keys(two_projects, caller, None, 10),
    ):
        with pytest.raises(Forbidden):
            verb()


def test_member_sees_and_revokes_own_keys_only(two_projects: Context) -> None:
    eve, kim = (
        caller_of(two_projects, new_person(two_projects, name, {"ann": Role.MEMBER})) for name in ("eve", "kim")
    )
    own, foreign = key_of(two_projects, eve, Scope.JOBS_READ), key_of(two_projects, kim, Scope.JOBS_READ)
    assert [key.id for key in list_keys(two_projects, eve, None, 10).items] == [own.id]
    for verb in (
        lambda: revoke_key(two_projects, eve, foreign.id),
        lambda: rotate_key(two_projects, eve, foreign.id, RotateKey()),
    ):
        with pytest.raises(NotFound):
            verb()
    assert {key.id for key in list_keys(two_projects, ANN_ADMIN, None, 10).items} == {own.id, foreign.id}
    with pytest.raises(Forbidden, match="another person"):
        rotate_key(two_projects, ANN_ADMIN, foreign.id, RotateKey())
    assert revoke_key(two_projects, ANN_ADMIN, foreign.id).revoked_at is not None


def test_old_words_for_scopes_are_kept_in_the_database_and_reach_what_they_did(two_projects: Context) -> None:
    for word, text in ((Scope.MEMBER, "member"), (Scope.ADMIN, "admin"), (Scope.NODE, "node")):
        made = create_key(two_projects, ROOT, CreateKey(scope=word, project_id="ann"))
        with two_projects.store.read() as tx:
            stored = tx.keys.get(made.id, project_id="ann")
        assert stored is not None
        assert (stored.scope, made.scope) == (text, word)
        assert authenticate(two_projects, made.secret).scopes == word.reach
    listed = create_key(two_projects, ROOT, CreateKey(scopes=(Scope.DATASETS, Scope.JOBS_READ), project_id="ann"))
    assert (listed.scope, listed.scopes) == (Scope.MEMBER, (Scope.DATASETS, Scope.JOBS_READ))
    assert authenticate(two_projects, listed.secret).scopes == {Scope.DATASETS, Scope.JOBS_READ}


def test_node_scope_goes_with_no_other(two_projects: Context) -> None:
    with pytest.raises(InvalidInput, match="cannot be combined with other scopes"):
        key_of(two_projects, ANN_ADMIN, Scope.NODE, Scope.JOBS_READ)


def test_key_is_refused_from_its_expiry_on_also_where_it_is_remembered(
    two_projects: Context, clock: ManualClock
) -> None:
    made = create_key(two_projects, ANN_ADMIN, CreateKey(expires_in_s=60))
    clock.advance_s(58)
    caller = authenticate(two_projects, made.secret)
    require_standing(two_projects, caller)
    clock.advance_s(2)
    with pytest.raises(Unauthenticated):
        authenticate(two_projects, made.secret)
    clock.advance_s(STANDING_KEPT_MS / 1000)
    with pytest.raises(Unauthenticated):
        require_standing(two_projects, caller)


def test_key_that_an_expiring_key_made_expires_with_it(two_projects: Context, clock: ManualClock) -> None:
    maker = create_key(two_projects, ANN_ADMIN, CreateKey(scope=Scope.ADMIN, expires_in_s=60))
    clock.advance_s(30)
    caller = authenticate(two_projects, maker.secret)
    for wanted in (None, 31):
        assert create_key(two_projects, caller, CreateKey(expires_in_s=wanted)).expires_at == maker.expires_at
    sooner = create_key(two_projects, caller, CreateKey(expires_in_s=5)).expires_at
    assert sooner is not None
    assert maker.expires_at is not None
    assert sooner < maker.expires_at


def test_old_sessions_and_failures_are_forgotten(two_projects: Context, clock: ManualClock) -> None:
    eve = new_person(two_projects, "eve", {"ann": Role.MEMBER})
    signed_in_at(two_projects, eve)
    with pytest.raises(Unauthenticated):
        sign_in(two_projects, SignIn(email="nobody@example.com", password="wrong"), HOME, earlier=None)
    clock.advance_s((SESSION_MS + KEPT_AFTER_MS) / 1000 + 1)
    signed_in_at(two_projects, eve)
    with two_projects.store.read() as tx:
        connection = tx.connection  # type: ignore[attr-defined]
        assert connection.scalar(sa.select(sa.func.count()).select_from(sessions)) == 1
        assert connection.scalar(sa.select(sa.func.count()).select_from(failed_sign_ins)) == 0


def test_last_admin_key_is_one_that_does_not_end_by_itself(two_projects: Context) -> None:
    first = create_key(two_projects, ROOT, CreateKey(scope=Scope.ADMIN))
    create_key(two_projects, ROOT, CreateKey(scope=Scope.ADMIN, expires_in_s=60))
    key_of(two_projects, caller_of(two_projects, new_person(two_projects, "boss", operator=True)), Scope.ADMIN)
    with pytest.raises(Conflict, match="last admin key"):
        revoke_key(two_projects, ROOT, first.id)


def test_rotated_key_has_two_secrets_for_a_while(two_projects: Context, clock: ManualClock) -> None:
    made = create_key(two_projects, ANN_ADMIN, CreateKey())
    authenticate(two_projects, made.secret)
    second = rotate_key(two_projects, ANN_ADMIN, made.id, RotateKey(overlap_s=10))
    assert second.id == made.id
    assert (
        authenticate(two_projects, made.secret).key_id == authenticate(two_projects, second.secret).key_id == made.id
    )
    clock.advance_s(9)
    authenticate(two_projects, made.secret)
    clock.advance_s(1)
    with pytest.raises(Unauthenticated):
        authenticate(two_projects, made.secret)
    third = rotate_key(two_projects, ANN_ADMIN, made.id, RotateKey(overlap_s=0))
    with pytest.raises(Unauthenticated):
        authenticate(two_projects, second.secret)
    revoke_key(two_projects, ANN_ADMIN, made.id)
    with pytest.raises(Conflict, match="revoked"):
        rotate_key(two_projects, ANN_ADMIN, made.id, RotateKey())
    with pytest.raises(Unauthenticated):
        authenticate(two_projects, third.secret)


def test_node_key_with_limits_is_rotated_by_the_operator_alone(two_projects: Context) -> None:
    wanted = CreateKey(scope=Scope.NODE, project_id="ann", fleet="gpu", max_price_micro_usd_per_hour=5)
    made = create_key(two_projects, ROOT, wanted)
    with pytest.raises(Forbidden):
        rotate_key(two_projects, ANN_ADMIN, made.id, RotateKey())
    caller = authenticate(two_projects, rotate_key(two_projects, ROOT, made.id, RotateKey()).secret)
    assert (caller.fleet, caller.max_price_micro_usd_per_hour) == ("gpu", 5)


def joined(ctx: Context, secret: str, name: str = "eve", password: str = PASSWORD) -> OpenedSession:
    request = AcceptInvitation(email=f"{name}@example.com", password=password, secret=secret)
    return accept_invitation(ctx, request, HOME, earlier=None)


def test_invitation_lets_one_person_in_once(two_projects: Context) -> None:
    made = create_invitation(two_projects, ANN_ADMIN, CreateInvitation(role=Role.MEMBER))
    opened = joined(two_projects, made.secret)
    caller = signed_in(two_projects, opened.secret, None)
    assert (caller.project_id, caller.scopes) == ("ann", USER_VERBS)
    with pytest.raises(NotFound, match="used"):
        joined(two_projects, made.secret, "kim")
    (shown,) = list_invitations(two_projects, ANN_ADMIN, None, 10).items
    assert (shown.accepted_by, shown.created_by) == (caller.user_id, ANN_ADMIN.key_id)
    (user,) = list_users(two_projects, ROOT, None, 10).items
    assert user.created_by == made.id
    (member,) = list_members(two_projects, ANN_ADMIN, "ann").items
    assert (member.role, member.created_by) == (Role.MEMBER, ANN_ADMIN.key_id)


def test_invitation_accepted_by_several_at_once_lets_one_in(two_projects: Context) -> None:
    made = create_invitation(two_projects, ANN_ADMIN, CreateInvitation())

    def tries(number: int) -> bool:
        try:
            joined(two_projects, made.secret, f"person{number}")
        except NotFound:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(tries, range(4))) == 1
    assert len(list_members(two_projects, ANN_ADMIN, "ann").items) == 1
    assert len(list_users(two_projects, ROOT, None, 10).items) == 1, "who was too late has no account"


def test_invitation_of_no_use_is_answered_alike(two_projects: Context, clock: ManualClock) -> None:
    revoked = create_invitation(two_projects, ANN_ADMIN, CreateInvitation())
    revoke_invitation(two_projects, ANN_ADMIN, revoked.id)
    late = create_invitation(two_projects, ANN_ADMIN, CreateInvitation(expires_in_s=60))
    demoted_owner = new_person(two_projects, "kim", {"ann": Role.OWNER})
    hers = create_invitation(two_projects, caller_of(two_projects, demoted_owner), CreateInvitation(role=Role.OWNER))
    demoted(two_projects, demoted_owner)
    clock.advance_s(60)
    said = set()
    for secret in ("gi_unknown", revoked.secret, late.secret, hers.secret):
        with pytest.raises(NotFound) as refused:
            joined(two_projects, secret)
        said.add(str(refused.value))
    assert len(said) == 1


def test_invitation_of_a_known_address_needs_its_password_and_never_lowers_a_role(two_projects: Context) -> None:
    user = new_person(two_projects, "eve", {"ann": Role.OWNER})
    made = create_invitation(two_projects, ANN_ADMIN, CreateInvitation(role=Role.VIEWER))
    with pytest.raises(Unauthenticated):
        joined(two_projects, made.secret, password="another sentence")
    joined(two_projects, made.secret)
    (member,) = list_members(two_projects, ANN_ADMIN, "ann").items
    assert (member.user_id, member.role) == (user.id, Role.OWNER)


def test_new_account_needs_a_long_password(two_projects: Context) -> None:
    made = create_invitation(two_projects, ANN_ADMIN, CreateInvitation())
    with pytest.raises(InvalidInput, match="too short"):
        joined(two_projects, made.secret, password="short")
    joined(two_projects, made.secret)


def test_owner_is_no_role_of_the_operators_project(two_projects: Context) -> None:
    user = new_person(two_projects, "eve", {"default": Role.MEMBER})
    for verb in (
        lambda: set_member(two_projects, ROOT, "default", user.id, SetMember(role=Role.OWNER)),
        lambda: create_invitation(two_projects, ROOT, CreateInvitation(role=Role.OWNER)),
    ):
        with pytest.raises(InvalidInput, match="no owners"):
            verb()
    assert not caller_of(two_projects, user).is_root_admin


def test_operator_reaches_every_project_and_is_none_any_more_when_the_flag_goes(two_projects: Context) -> None:
    boss = new_person(two_projects, "boss", operator=True)
    opened = signed_in_at(two_projects, boss)
    assert signed_in(two_projects, opened.secret, None).is_root_admin
    assert Scope.ADMIN in signed_in(two_projects, opened.secret, "ann").scopes
    assert not signed_in(two_projects, opened.secret, "ann").is_root_admin
    key = key_of(two_projects, signed_in(two_projects, opened.secret, None), Scope.ADMIN)
    made = create_invitation(
        two_projects, signed_in(two_projects, opened.secret, "ann"), CreateInvitation(role=Role.OWNER)
    )
    change_user(two_projects, ROOT, boss.id, ChangeUser(operator=False))
    with pytest.raises(NotFound):
        joined(two_projects, made.secret)
    with pytest.raises(Unauthenticated):
        authenticate(two_projects, key.secret)
    with pytest.raises(NotFound):
        signed_in(two_projects, opened.secret, "ann")


def test_last_owner_stays_unless_the_operator_says_otherwise(two_projects: Context) -> None:
    eve = new_person(two_projects, "eve", {"ann": Role.OWNER})
    caller = caller_of(two_projects, eve)
    for verb in (
        lambda: remove_member(two_projects, caller, "ann", eve.id),
        lambda: set_member(two_projects, caller, "ann", eve.id, SetMember(role=Role.MEMBER)),
    ):
        with pytest.raises(Conflict, match="last owner"):
            verb()
    new_person(two_projects, "kim", {"ann": Role.OWNER})
    remove_member(two_projects, caller, "ann", eve.id)
    assert [member.name for member in list_members(two_projects, ANN_ADMIN, "ann").items] == ["kim"]


def test_member_may_leave_and_remove_nobody_else(two_projects: Context) -> None:
    eve, kim = (new_person(two_projects, name, {"ann": Role.MEMBER}) for name in ("eve", "kim"))
    caller = caller_of(two_projects, eve)
    with pytest.raises(Forbidden):
        remove_member(two_projects, caller, "ann", kim.id)
    assert remove_member(two_projects, caller, "ann", eve.id).user_id == eve.id


def test_only_the_operator_adds_a_person_without_an_invitation(two_projects: Context) -> None:
    stranger = new_person(two_projects, "eve")
    with pytest.raises(NotFound):
        set_member(two_projects, ANN_ADMIN, "ann", stranger.id, SetMember(role=Role.VIEWER))
    with pytest.raises(NotFound):
        list_members(two_projects, ANN_ADMIN, "bob")


def test_rows_that_a_person_or_a_key_makes_say_who(two_projects: Context) -> None:
    eve = new_person(two_projects, "eve", {"ann": Role.OWNER})
    session = caller_of(two_projects, eve)
    key = key_of(two_projects, session, Scope.MEMBER)
    by_key = authenticate(two_projects, key.secret)
    assert key.created_by == eve.id
    assert create_invitation(two_projects, session, CreateInvitation()).created_by == eve.id
    assert new_dataset(two_projects, session).created_by == eve.id
    assert get_dataset(two_projects, ANN, new_dataset(two_projects, by_key).id).created_by == eve.id, (
        "it stood already"
    )
    assert add_model(two_projects, by_key, AddModel(name="base", reference="own/er")).created_by == key.id
    job = new_job(two_projects, by_key)
    assert job.created_by == key.id
    cancel(two_projects, session, job.id)
    assert retry(two_projects, session, job.id).created_by == eve.id
    assert read_me(two_projects, by_key).user == read_me(two_projects, session).user


def test_sign_in_with_the_right_password_from_elsewhere_works_while_a_stranger_fails(
    two_projects: Context, clock: ManualClock
) -> None:
    user = new_person(two_projects, "eve")
    waits = []
    for _ in range(12):
        try:
            sign_in(two_projects, SignIn(email=user.email, password="wrong"), ELSEWHERE, earlier=None)
        except SignInDelayed as delayed:
            waits.append(delayed.retry_after_s)
            clock.advance_s(delayed.retry_after_s)
        except Unauthenticated:
            pass
    assert waits == sorted(waits)
    assert waits[-1] > waits[0]
    sign_in(two_projects, SignIn(email=user.email.upper(), password=PASSWORD), HOME, earlier=None)
    clock.advance_s(waits[-1] * 2)
    sign_in(two_projects, SignIn(email=user.email, password=PASSWORD), ELSEWHERE, earlier=None)
    sign_in(two_projects, SignIn(email=user.email, password=PASSWORD), ELSEWHERE, earlier=None)


def test_tries_that_come_at_once_are_counted_each(two_projects: Context) -> None:
    user = new_person(two_projects, "eve")

    def tries(_: int) -> type[Exception]:
        try:
            sign_in(two_projects, SignIn(email=user.email, password="wrong"), ELSEWHERE, earlier=None)
        except (Unauthenticated, SignInDelayed) as error:
            return type(error)
        raise AssertionError

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(tries, range(16)))
    assert answers.count(Unauthenticated) == 5  # four are free, and the fifth closes the door
    assert two_projects.passwords.verified == 5  # type: ignore[attr-defined]


def test_unknown_address_is_answered_as_a_wrong_password_is(two_projects: Context) -> None:
    new_person(two_projects, "eve")
    gone = new_person(two_projects, "gone")
    deactivated(two_projects, gone)
    said, before = set(), two_projects.passwords.verified  # type: ignore[attr-defined]
    for email, password in (
        ("eve@example.com", "wrong"),
        ("nobody@example.com", "wrong"),
        ("nobody@example.com", "plain:"),
        (gone.email, PASSWORD),
    ):
        with pytest.raises(Unauthenticated) as refused:
            sign_in(two_projects, SignIn(email=email, password=password), HOME, earlier=None)
        said.add(str(refused.value))
    assert len(said) == 1
    assert two_projects.passwords.verified == before + 4  # type: ignore[attr-defined]


def test_session_that_was_there_before_ends_with_the_sign_in(two_projects: Context) -> None:
    eve, attacker = (
        new_person(two_projects, "eve", {"ann": Role.MEMBER}),
        new_person(two_projects, "kim", {"ann": Role.VIEWER}),
    )
    planted = signed_in_at(two_projects, attacker).secret
    signed_in(two_projects, planted, None)
    opened = sign_in(two_projects, SignIn(email=eve.email, password=PASSWORD), HOME, earlier=planted)
    assert opened.secret != planted
    with pytest.raises(Unauthenticated):
        signed_in(two_projects, planted, None)


def test_session_ends_by_time_and_without_use(two_projects: Context, clock: ManualClock) -> None:
    eve = new_person(two_projects, "eve", {"ann": Role.MEMBER})
    idle, used = signed_in_at(two_projects, eve).secret, signed_in_at(two_projects, eve).secret
    steps = SESSION_MS // (IDLE_MS - 1000)
    for _ in range(steps):
        clock.advance_s((IDLE_MS - 1000) / 1000)
        signed_in(two_projects, used, None)
    with pytest.raises(Unauthenticated):
        signed_in(two_projects, idle, None)
    assert (
        len(list_sessions(two_projects, signed_in(two_projects, used, None), None, 10).items) == 2
    )  # not yet by its time
    clock.advance_s((SESSION_MS - steps * (IDLE_MS - 1000)) / 1000)
    with pytest.raises(Unauthenticated):
        signed_in(two_projects, used, None)


def test_session_is_listed_and_ended_by_its_person_alone(two_projects: Context) -> None:
    eve, kim = (new_person(two_projects, name, {"ann": Role.MEMBER}) for name in ("eve", "kim"))
    laptop, phone = signed_in_at(two_projects, eve), signed_in_at(two_projects, eve, ELSEWHERE)
    caller = signed_in(two_projects, laptop.secret, None)
    shown = {
        each.id: (each.address, each.agent, each.current)
        for each in list_sessions(two_projects, caller, None, 10).items
    }
    assert shown == {
        laptop.reply.session.id: (HOME.address, HOME.agent, True),
        phone.reply.session.id: (ELSEWHERE.address, ELSEWHERE.agent, False),
    }
    with pytest.raises(NotFound):
        end_session(two_projects, caller_of(two_projects, kim), phone.reply.session.id)
    end_session(two_projects, caller, phone.reply.session.id)
    with pytest.raises(Unauthenticated):
        signed_in(two_projects, phone.secret, None)
    with pytest.raises(Forbidden, match="takes a session"):
        list_sessions(two_projects, ANN, None, 10)


def test_other_sessions_end_with_another_password(two_projects: Context) -> None:
    eve = new_person(two_projects, "eve", {"ann": Role.MEMBER})
    laptop, phone = signed_in_at(two_projects, eve), signed_in_at(two_projects, eve)
    request = ChangePassword(password=PASSWORD, new_password="another long sentence")
    change_password(two_projects, eve.id, laptop.reply.session.id, request, HOME)
    signed_in(two_projects, laptop.secret, None)
    with pytest.raises(Unauthenticated):
        signed_in(two_projects, phone.secret, None)
    with pytest.raises(Unauthenticated):
        signed_in_at(two_projects, eve)
    with pytest.raises(Unauthenticated):
        change_password(two_projects, eve.id, laptop.reply.session.id, request, HOME)


def test_operator_sets_a_new_password_for_somebody_who_lost_it(two_projects: Context) -> None:
    eve = new_person(two_projects, "eve", {"ann": Role.MEMBER})
    opened = signed_in_at(two_projects, eve)
    change_user(two_projects, ROOT, eve.id, ChangeUser(password="another long sentence"))
    with pytest.raises(Unauthenticated):
        signed_in(two_projects, opened.secret, None)
    sign_in(two_projects, SignIn(email=eve.email, password="another long sentence"), HOME, earlier=None)


def test_address_has_one_account_whatever_its_case(two_projects: Context) -> None:
    new_person(two_projects, "eve")
    with pytest.raises(Conflict, match="there is an account"):
        create_user(two_projects, ROOT, CreateUser(email="EVE@example.com", password=PASSWORD))


def test_session_of_a_person_of_no_project_reaches_nothing(two_projects: Context) -> None:
    caller = caller_of(two_projects, new_person(two_projects, "eve"))
    assert (caller.project_id, caller.scopes) == ("", frozenset())
    assert read_me(two_projects, caller).scopes == ()


def test_bytes_of_one_project_are_no_scope_of_another(two_projects: Context) -> None:
    with pytest.raises(Forbidden):
        have(two_projects, ANNS_NODE, b"bytes")
    reader = replace(BOB, scopes=frozenset({Scope.JOBS_READ}))
    with pytest.raises(Forbidden, match="scope datasets"):
        have(two_projects, reader, b"bytes")
