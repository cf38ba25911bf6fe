"""People, their roles, and what becomes of their keys and sessions when they lose them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa
from tests.fixtures.contexts import ManualClock
from tests.fixtures.people import HOME, PASSWORD, ROOT, new_person, signed_in_at
from tests.fixtures.users import ANN, ANN_ADMIN, ANNS_NODE, BOB, have, move_in, new_dataset, new_job

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
from giornata.control.access.sessions import (
    IDLE_MS,
    KEPT_AFTER_MS,
    SESSION_MS,
    OpenedSession,
    Visitor,
    end_session,
    list_sessions,
)
from giornata.control.access.sign_in import change_password, sign_in
from giornata.control.access.users import change_user, create_user, list_users
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.retry import retry
from giornata.control.jobs.stop_job import cancel
from giornata.control.models.register import add_model
from giornata.control.process_cache import ProcessCache
from giornata.control.storage.datasets import get_dataset
from giornata.domain.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    SignInDelayed,
    Unauthenticated,
)
from giornata.protocol.admin import USER_VERBS, CreatedKey, CreateKey, RotateKey, Scope
from giornata.protocol.models import AddModel
from giornata.protocol.people import (
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
from giornata.store.schema import failed_sign_ins, sessions

WITHIN_MS = 5_000
ELSEWHERE = Visitor(address="198.51.100.4", agent="curl")


@pytest.fixture
def house(ctx: Context) -> Context:
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
    house: Context, clock: ManualClock, lose: object
) -> None:
    user = new_person(house, "eve", {"ann": Role.OWNER})
    opened = signed_in_at(house, user)
    session = signed_in(house, opened.secret, "ann")
    secrets = [key_of(house, session, Scope.MEMBER).secret, key_of(house, session, Scope.NODE).secret]
    admin = key_of(house, session, Scope.ADMIN)
    # A key that a key of hers made falls with her as well.
    secrets += [admin.secret, key_of(house, authenticate(house, admin.secret), Scope.JOBS_READ).secret]
    replica = other_server(house)
    for server in (house, replica):
        callers = [authenticate(server, secret) for secret in secrets]
        signed_in(server, opened.secret, "ann")
        for caller in (*callers, session):
            require_standing(server, caller)
    lose(house, user)  # type: ignore[operator]
    assert_refused(house, secrets, opened.secret, [*callers, session])
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


def test_what_is_remembered_of_a_caller_is_younger_than_five_seconds() -> None:
    look_s = 0.5  # how often a stream looks
    assert KEPT_MS < WITHIN_MS
    assert STANDING_KEPT_MS + look_s * 1000 < WITHIN_MS


def test_key_of_person_who_is_demoted_loses_what_the_person_lost(house: Context) -> None:
    user = new_person(house, "eve", {"ann": Role.OWNER})
    session = caller_of(house, user, "ann")
    admin, reader = key_of(house, session, Scope.ADMIN), key_of(house, session, Scope.JOBS_READ)
    node, before = key_of(house, session, Scope.NODE), authenticate(house, admin.secret)
    demoted(house, user)
    assert authenticate(house, admin.secret).scopes == {Scope.JOBS_READ}
    assert authenticate(house, reader.secret).scopes == {Scope.JOBS_READ}
    for gone in (lambda: authenticate(house, node.secret), lambda: require_standing(house, before)):
        with pytest.raises(Unauthenticated):
            gone()
    set_member(house, ROOT, "ann", user.id, SetMember(role=Role.MEMBER))
    assert authenticate(house, reader.secret).scopes == {Scope.JOBS_READ}, "a key has no more than it was given"


def test_caller_with_fewer_scopes_does_not_keep_one_with_more(house: Context, clock: ManualClock) -> None:
    user = new_person(house, "eve", {"ann": Role.OWNER})
    secret, replica = signed_in_at(house, user).secret, other_server(house)
    owner = signed_in(replica, secret, "ann")
    require_standing(replica, owner)
    demoted(house, user)
    clock.advance_s(STANDING_KEPT_MS / 1000)
    viewer = signed_in(replica, secret, "ann")
    assert viewer.scopes < owner.scopes
    require_standing(replica, viewer)
    with pytest.raises(Unauthenticated):
        require_standing(replica, owner)


def test_key_of_person_who_left_stays_revoked_when_the_person_comes_back(house: Context) -> None:
    user = new_person(house, "eve", {"ann": Role.MEMBER, "bob": Role.MEMBER})
    there = key_of(house, caller_of(house, user, "bob"), Scope.JOBS_READ)
    made = key_of(house, caller_of(house, user, "ann"), Scope.JOBS_READ)
    removed(house, user)
    set_member(house, ROOT, "ann", user.id, SetMember(role=Role.OWNER))
    with pytest.raises(Unauthenticated):
        authenticate(house, made.secret)
    assert authenticate(house, there.secret).project_id == "bob"


@pytest.mark.parametrize(
    ("role", "good", "beyond"),
    [
        (Role.VIEWER, [Scope.JOBS_READ], [Scope.JOBS_WRITE, Scope.MEMBER, Scope.ADMIN, Scope.NODE]),
        (Role.MEMBER, [Scope.MEMBER, Scope.GENERATE], [Scope.ADMIN, Scope.NODE]),
        (Role.OWNER, [Scope.ADMIN, Scope.NODE, Scope.MEMBER], []),
    ],
)
def test_person_makes_keys_of_the_own_reach_and_no_further(
    house: Context, role: Role, good: list[Scope], beyond: list[Scope]
) -> None:
    caller = caller_of(house, new_person(house, "eve", {"ann": role}))
    for scope in good:
        assert authenticate(house, key_of(house, caller, scope).secret).scopes == scope.reach
    for scope in beyond:
        with pytest.raises(Forbidden, match="further than you"):
            key_of(house, caller, scope)
    with pytest.raises(NotFound):
        create_key(house, caller, CreateKey(scopes=(Scope.JOBS_READ,), project_id="bob"))


def test_key_that_governs_nothing_makes_no_key(house: Context) -> None:
    caller = authenticate(house, key_of(house, ANN_ADMIN, *USER_VERBS).secret)
    for verb in (lambda: key_of(house, caller, Scope.JOBS_READ), lambda: list_keys(house, caller, None, 10)):
        with pytest.raises(Forbidden):
            verb()


def test_member_sees_and_revokes_own_keys_only(house: Context) -> None:
    eve, kim = (caller_of(house, new_person(house, name, {"ann": Role.MEMBER})) for name in ("eve", "kim"))
    own, foreign = key_of(house, eve, Scope.JOBS_READ), key_of(house, kim, Scope.JOBS_READ)
    assert [key.id for key in list_keys(house, eve, None, 10).items] == [own.id]
    for verb in (
        lambda: revoke_key(house, eve, foreign.id),
        lambda: rotate_key(house, eve, foreign.id, RotateKey()),
    ):
        with pytest.raises(NotFound):
            verb()
    assert {key.id for key in list_keys(house, ANN_ADMIN, None, 10).items} == {own.id, foreign.id}
    with pytest.raises(Forbidden, match="another person"):
        rotate_key(house, ANN_ADMIN, foreign.id, RotateKey())
    assert revoke_key(house, ANN_ADMIN, foreign.id).revoked_at is not None


def test_old_words_for_scopes_are_kept_in_the_database_and_reach_what_they_did(house: Context) -> None:
    for word, text in ((Scope.MEMBER, "member"), (Scope.ADMIN, "admin"), (Scope.NODE, "node")):
        made = create_key(house, ROOT, CreateKey(scope=word, project_id="ann"))
        with house.store.read() as tx:
            stored = tx.keys.get(made.id, project_id="ann")
        assert stored is not None
        assert (stored.scope, made.scope) == (text, word)
        assert authenticate(house, made.secret).scopes == word.reach
    listed = create_key(house, ROOT, CreateKey(scopes=(Scope.DATASETS, Scope.JOBS_READ), project_id="ann"))
    assert (listed.scope, listed.scopes) == (Scope.MEMBER, (Scope.DATASETS, Scope.JOBS_READ))
    assert authenticate(house, listed.secret).scopes == {Scope.DATASETS, Scope.JOBS_READ}


def test_node_scope_goes_with_no_other(house: Context) -> None:
    with pytest.raises(InvalidInput, match="no other scope"):
        key_of(house, ANN_ADMIN, Scope.NODE, Scope.JOBS_READ)


def test_key_is_refused_from_its_expiry_on_also_where_it_is_remembered(house: Context, clock: ManualClock) -> None:
    made = create_key(house, ANN_ADMIN, CreateKey(expires_in_s=60))
    clock.advance_s(58)
    caller = authenticate(house, made.secret)
    require_standing(house, caller)
    clock.advance_s(2)
    with pytest.raises(Unauthenticated):
        authenticate(house, made.secret)
    clock.advance_s(STANDING_KEPT_MS / 1000)
    with pytest.raises(Unauthenticated):
        require_standing(house, caller)


def test_key_that_an_expiring_key_made_expires_with_it(house: Context, clock: ManualClock) -> None:
    maker = create_key(house, ANN_ADMIN, CreateKey(scope=Scope.ADMIN, expires_in_s=60))
    clock.advance_s(30)
    caller = authenticate(house, maker.secret)
    for wanted in (None, 31):
        assert create_key(house, caller, CreateKey(expires_in_s=wanted)).expires_at == maker.expires_at
    sooner = create_key(house, caller, CreateKey(expires_in_s=5)).expires_at
    assert sooner is not None
    assert maker.expires_at is not None
    assert sooner < maker.expires_at


def test_old_sessions_and_failures_are_forgotten(house: Context, clock: ManualClock) -> None:
    eve = new_person(house, "eve", {"ann": Role.MEMBER})
    signed_in_at(house, eve)
    with pytest.raises(Unauthenticated):
        sign_in(house, SignIn(email="nobody@example.com", password="wrong"), HOME, earlier=None)
    clock.advance_s((SESSION_MS + KEPT_AFTER_MS) / 1000 + 1)
    signed_in_at(house, eve)
    with house.store.read() as tx:
        connection = tx.connection  # type: ignore[attr-defined]
        assert connection.scalar(sa.select(sa.func.count()).select_from(sessions)) == 1
        assert connection.scalar(sa.select(sa.func.count()).select_from(failed_sign_ins)) == 0


def test_last_admin_key_is_one_that_does_not_end_by_itself(house: Context) -> None:
    first = create_key(house, ROOT, CreateKey(scope=Scope.ADMIN))
    create_key(house, ROOT, CreateKey(scope=Scope.ADMIN, expires_in_s=60))
    key_of(house, caller_of(house, new_person(house, "boss", operator=True)), Scope.ADMIN)
    with pytest.raises(Conflict, match="last admin key"):
        revoke_key(house, ROOT, first.id)


def test_rotated_key_has_two_secrets_for_a_while(house: Context, clock: ManualClock) -> None:
    made = create_key(house, ANN_ADMIN, CreateKey())
    authenticate(house, made.secret)
    second = rotate_key(house, ANN_ADMIN, made.id, RotateKey(overlap_s=10))
    assert second.id == made.id
    assert authenticate(house, made.secret).key_id == authenticate(house, second.secret).key_id == made.id
    clock.advance_s(9)
    authenticate(house, made.secret)
    clock.advance_s(1)
    with pytest.raises(Unauthenticated):
        authenticate(house, made.secret)
    third = rotate_key(house, ANN_ADMIN, made.id, RotateKey(overlap_s=0))
    with pytest.raises(Unauthenticated):
        authenticate(house, second.secret)
    revoke_key(house, ANN_ADMIN, made.id)
    with pytest.raises(Conflict, match="revoked"):
        rotate_key(house, ANN_ADMIN, made.id, RotateKey())
    with pytest.raises(Unauthenticated):
        authenticate(house, third.secret)


def test_node_key_with_limits_is_rotated_by_the_operator_alone(house: Context) -> None:
    wanted = CreateKey(scope=Scope.NODE, project_id="ann", fleet="gpu", max_price_micro_usd_per_hour=5)
    made = create_key(house, ROOT, wanted)
    with pytest.raises(Forbidden):
        rotate_key(house, ANN_ADMIN, made.id, RotateKey())
    caller = authenticate(house, rotate_key(house, ROOT, made.id, RotateKey()).secret)
    assert (caller.fleet, caller.max_price_micro_usd_per_hour) == ("gpu", 5)


def joined(ctx: Context, secret: str, name: str = "eve", password: str = PASSWORD) -> OpenedSession:
    request = AcceptInvitation(email=f"{name}@example.com", password=password, secret=secret)
    return accept_invitation(ctx, request, HOME, earlier=None)


def test_invitation_lets_one_person_in_once(house: Context) -> None:
    made = create_invitation(house, ANN_ADMIN, CreateInvitation(role=Role.MEMBER))
    opened = joined(house, made.secret)
    caller = signed_in(house, opened.secret, None)
    assert (caller.project_id, caller.scopes) == ("ann", USER_VERBS)
    with pytest.raises(NotFound, match="used"):
        joined(house, made.secret, "kim")
    (shown,) = list_invitations(house, ANN_ADMIN, None, 10).items
    assert (shown.accepted_by, shown.created_by) == (caller.user_id, ANN_ADMIN.key_id)
    (user,) = list_users(house, ROOT, None, 10).items
    assert user.created_by == made.id
    (member,) = list_members(house, ANN_ADMIN, "ann").items
    assert (member.role, member.created_by) == (Role.MEMBER, ANN_ADMIN.key_id)


def test_invitation_accepted_by_several_at_once_lets_one_in(house: Context) -> None:
    made = create_invitation(house, ANN_ADMIN, CreateInvitation())

    def tries(number: int) -> bool:
        try:
            joined(house, made.secret, f"person{number}")
        except NotFound:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(tries, range(4))) == 1
    assert len(list_members(house, ANN_ADMIN, "ann").items) == 1
    assert len(list_users(house, ROOT, None, 10).items) == 1, "who was too late has no account"


def test_invitation_of_no_use_is_answered_alike(house: Context, clock: ManualClock) -> None:
    revoked = create_invitation(house, ANN_ADMIN, CreateInvitation())
    revoke_invitation(house, ANN_ADMIN, revoked.id)
    late = create_invitation(house, ANN_ADMIN, CreateInvitation(expires_in_s=60))
    demoted_owner = new_person(house, "kim", {"ann": Role.OWNER})
    hers = create_invitation(house, caller_of(house, demoted_owner), CreateInvitation(role=Role.OWNER))
    demoted(house, demoted_owner)
    clock.advance_s(60)
    said = set()
    for secret in ("gi_unknown", revoked.secret, late.secret, hers.secret):
        with pytest.raises(NotFound) as refused:
            joined(house, secret)
        said.add(str(refused.value))
    assert len(said) == 1


def test_invitation_of_a_known_address_needs_its_password_and_never_lowers_a_role(house: Context) -> None:
    user = new_person(house, "eve", {"ann": Role.OWNER})
    made = create_invitation(house, ANN_ADMIN, CreateInvitation(role=Role.VIEWER))
    with pytest.raises(Unauthenticated):
        joined(house, made.secret, password="another sentence")
    joined(house, made.secret)
    (member,) = list_members(house, ANN_ADMIN, "ann").items
    assert (member.user_id, member.role) == (user.id, Role.OWNER)


def test_new_account_needs_a_long_password(house: Context) -> None:
    made = create_invitation(house, ANN_ADMIN, CreateInvitation())
    with pytest.raises(InvalidInput, match="too short"):
        joined(house, made.secret, password="short")
    joined(house, made.secret)


def test_owner_is_no_role_of_the_operators_project(house: Context) -> None:
    user = new_person(house, "eve", {"default": Role.MEMBER})
    for verb in (
        lambda: set_member(house, ROOT, "default", user.id, SetMember(role=Role.OWNER)),
        lambda: create_invitation(house, ROOT, CreateInvitation(role=Role.OWNER)),
    ):
        with pytest.raises(InvalidInput, match="no owners"):
            verb()
    assert not caller_of(house, user).is_root_admin


def test_operator_reaches_every_project_and_is_none_any_more_when_the_flag_goes(house: Context) -> None:
    boss = new_person(house, "boss", operator=True)
    opened = signed_in_at(house, boss)
    assert signed_in(house, opened.secret, None).is_root_admin
    assert Scope.ADMIN in signed_in(house, opened.secret, "ann").scopes
    assert not signed_in(house, opened.secret, "ann").is_root_admin
    key = key_of(house, signed_in(house, opened.secret, None), Scope.ADMIN)
    made = create_invitation(house, signed_in(house, opened.secret, "ann"), CreateInvitation(role=Role.OWNER))
    change_user(house, ROOT, boss.id, ChangeUser(operator=False))
    with pytest.raises(NotFound):
        joined(house, made.secret)
    with pytest.raises(Unauthenticated):
        authenticate(house, key.secret)
    with pytest.raises(NotFound):
        signed_in(house, opened.secret, "ann")


def test_last_owner_stays_unless_the_operator_says_otherwise(house: Context) -> None:
    eve = new_person(house, "eve", {"ann": Role.OWNER})
    caller = caller_of(house, eve)
    for verb in (
        lambda: remove_member(house, caller, "ann", eve.id),
        lambda: set_member(house, caller, "ann", eve.id, SetMember(role=Role.MEMBER)),
    ):
        with pytest.raises(Conflict, match="last owner"):
            verb()
    new_person(house, "kim", {"ann": Role.OWNER})
    remove_member(house, caller, "ann", eve.id)
    assert [member.name for member in list_members(house, ANN_ADMIN, "ann").items] == ["kim"]


def test_member_may_leave_and_remove_nobody_else(house: Context) -> None:
    eve, kim = (new_person(house, name, {"ann": Role.MEMBER}) for name in ("eve", "kim"))
    caller = caller_of(house, eve)
    with pytest.raises(Forbidden):
        remove_member(house, caller, "ann", kim.id)
    assert remove_member(house, caller, "ann", eve.id).user_id == eve.id


def test_only_the_operator_adds_a_person_without_an_invitation(house: Context) -> None:
    stranger = new_person(house, "eve")
    with pytest.raises(NotFound):
        set_member(house, ANN_ADMIN, "ann", stranger.id, SetMember(role=Role.VIEWER))
    with pytest.raises(NotFound):
        list_members(house, ANN_ADMIN, "bob")


def test_rows_that_a_person_or_a_key_makes_say_who(house: Context) -> None:
    eve = new_person(house, "eve", {"ann": Role.OWNER})
    session = caller_of(house, eve)
    key = key_of(house, session, Scope.MEMBER)
    by_key = authenticate(house, key.secret)
    assert key.created_by == eve.id
    assert create_invitation(house, session, CreateInvitation()).created_by == eve.id
    assert new_dataset(house, session).created_by == eve.id
    assert get_dataset(house, ANN, new_dataset(house, by_key).id).created_by == eve.id, "it stood already"
    assert add_model(house, by_key, AddModel(name="base", reference="own/er")).created_by == key.id
    job = new_job(house, by_key)
    assert job.created_by == key.id
    cancel(house, session, job.id)
    assert retry(house, session, job.id).created_by == eve.id
    assert read_me(house, by_key).user == read_me(house, session).user


def test_sign_in_with_the_right_password_from_elsewhere_works_while_a_stranger_fails(
    house: Context, clock: ManualClock
) -> None:
    user = new_person(house, "eve")
    waits = []
    for _ in range(12):
        try:
            sign_in(house, SignIn(email=user.email, password="wrong"), ELSEWHERE, earlier=None)
        except SignInDelayed as delayed:
            waits.append(delayed.retry_after_s)
            clock.advance_s(delayed.retry_after_s)
        except Unauthenticated:
            pass
    assert waits == sorted(waits)
    assert waits[-1] > waits[0]
    sign_in(house, SignIn(email=user.email.upper(), password=PASSWORD), HOME, earlier=None)
    clock.advance_s(waits[-1] * 2)
    sign_in(house, SignIn(email=user.email, password=PASSWORD), ELSEWHERE, earlier=None)
    sign_in(house, SignIn(email=user.email, password=PASSWORD), ELSEWHERE, earlier=None)


def test_tries_that_come_at_once_are_counted_each(house: Context) -> None:
    user = new_person(house, "eve")

    def tries(_: int) -> type[Exception]:
        try:
            sign_in(house, SignIn(email=user.email, password="wrong"), ELSEWHERE, earlier=None)
        except (Unauthenticated, SignInDelayed) as error:
            return type(error)
        raise AssertionError

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(tries, range(16)))
    assert answers.count(Unauthenticated) == 5  # four are free, and the fifth closes the door
    assert house.passwords.verified == 5  # type: ignore[attr-defined]


def test_unknown_address_is_answered_as_a_wrong_password_is(house: Context) -> None:
    new_person(house, "eve")
    gone = new_person(house, "gone")
    deactivated(house, gone)
    said, before = set(), house.passwords.verified  # type: ignore[attr-defined]
    for email, password in (
        ("eve@example.com", "wrong"),
        ("nobody@example.com", "wrong"),
        ("nobody@example.com", "plain:"),
        (gone.email, PASSWORD),
    ):
        with pytest.raises(Unauthenticated) as refused:
            sign_in(house, SignIn(email=email, password=password), HOME, earlier=None)
        said.add(str(refused.value))
    assert len(said) == 1
    assert house.passwords.verified == before + 4  # type: ignore[attr-defined]


def test_session_that_was_there_before_ends_with_the_sign_in(house: Context) -> None:
    eve, attacker = new_person(house, "eve", {"ann": Role.MEMBER}), new_person(house, "kim", {"ann": Role.VIEWER})
    planted = signed_in_at(house, attacker).secret
    signed_in(house, planted, None)
    opened = sign_in(house, SignIn(email=eve.email, password=PASSWORD), HOME, earlier=planted)
    assert opened.secret != planted
    with pytest.raises(Unauthenticated):
        signed_in(house, planted, None)


def test_session_ends_by_time_and_without_use(house: Context, clock: ManualClock) -> None:
    eve = new_person(house, "eve", {"ann": Role.MEMBER})
    idle, used = signed_in_at(house, eve).secret, signed_in_at(house, eve).secret
    steps = SESSION_MS // (IDLE_MS - 1000)
    for _ in range(steps):
        clock.advance_s((IDLE_MS - 1000) / 1000)
        signed_in(house, used, None)
    with pytest.raises(Unauthenticated):
        signed_in(house, idle, None)
    assert len(list_sessions(house, signed_in(house, used, None), None, 10).items) == 2  # not yet by its time
    clock.advance_s((SESSION_MS - steps * (IDLE_MS - 1000)) / 1000)
    with pytest.raises(Unauthenticated):
        signed_in(house, used, None)


def test_session_is_listed_and_ended_by_its_person_alone(house: Context) -> None:
    eve, kim = (new_person(house, name, {"ann": Role.MEMBER}) for name in ("eve", "kim"))
    laptop, phone = signed_in_at(house, eve), signed_in_at(house, eve, ELSEWHERE)
    caller = signed_in(house, laptop.secret, None)
    shown = {
        each.id: (each.address, each.agent, each.current) for each in list_sessions(house, caller, None, 10).items
    }
    assert shown == {
        laptop.reply.session.id: (HOME.address, HOME.agent, True),
        phone.reply.session.id: (ELSEWHERE.address, ELSEWHERE.agent, False),
    }
    with pytest.raises(NotFound):
        end_session(house, caller_of(house, kim), phone.reply.session.id)
    end_session(house, caller, phone.reply.session.id)
    with pytest.raises(Unauthenticated):
        signed_in(house, phone.secret, None)
    with pytest.raises(Forbidden, match="takes a session"):
        list_sessions(house, ANN, None, 10)


def test_other_sessions_end_with_another_password(house: Context) -> None:
    eve = new_person(house, "eve", {"ann": Role.MEMBER})
    laptop, phone = signed_in_at(house, eve), signed_in_at(house, eve)
    request = ChangePassword(password=PASSWORD, new_password="another long sentence")
    change_password(house, eve.id, laptop.reply.session.id, request, HOME)
    signed_in(house, laptop.secret, None)
    with pytest.raises(Unauthenticated):
        signed_in(house, phone.secret, None)
    with pytest.raises(Unauthenticated):
        signed_in_at(house, eve)
    with pytest.raises(Unauthenticated):
        change_password(house, eve.id, laptop.reply.session.id, request, HOME)


def test_operator_sets_a_new_password_for_somebody_who_lost_it(house: Context) -> None:
    eve = new_person(house, "eve", {"ann": Role.MEMBER})
    opened = signed_in_at(house, eve)
    change_user(house, ROOT, eve.id, ChangeUser(password="another long sentence"))
    with pytest.raises(Unauthenticated):
        signed_in(house, opened.secret, None)
    sign_in(house, SignIn(email=eve.email, password="another long sentence"), HOME, earlier=None)


def test_address_has_one_account_whatever_its_case(house: Context) -> None:
    new_person(house, "eve")
    with pytest.raises(Conflict, match="there is an account"):
        create_user(house, ROOT, CreateUser(email="EVE@example.com", password=PASSWORD))


def test_session_of_a_person_of_no_project_reaches_nothing(house: Context) -> None:
    caller = caller_of(house, new_person(house, "eve"))
    assert (caller.project_id, caller.scopes) == ("", frozenset())
    assert read_me(house, caller).scopes == ()


def test_bytes_of_one_project_are_no_scope_of_another(house: Context) -> None:
    with pytest.raises(Forbidden):
        have(house, ANNS_NODE, b"bytes")
    reader = replace(BOB, scopes=frozenset({Scope.JOBS_READ}))
    with pytest.raises(Forbidden, match="scope datasets"):
        have(house, reader, b"bytes")
