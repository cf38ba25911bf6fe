"""Devices that a person signs in: who gets a key, when, how far it reaches, and how soon it ends."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fixtures.contexts import ManualClock
from tests.fixtures.people import HOME, ROOT, new_person, signed_in_at
from tests.fixtures.users import move_in

from giornata.control.access.authenticate import authenticate, signed_in
from giornata.control.access.keys import create_key, list_keys, revoke_key, rotate_key
from giornata.control.access.members import remove_member, set_member
from giornata.control.access.signing_in.device_sign_in import (
    CODE_TTL_S,
    KEPT_AFTER_MS,
    MOST_WAITING_PER_ADDRESS,
    POLL_INTERVAL_S,
    approve_device,
    begin_device,
    deny_device,
    find_device,
    take_device_key,
)
from giornata.control.access.signing_in.sessions import Visitor
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.memory.process_cache import ProcessCache
from giornata.domain.accounts.user_codes import user_code_from
from giornata.domain.errors import (
    Conflict,
    Forbidden,
    GiornataError,
    InvalidInput,
    NotFound,
    SignInDelayed,
    TooMany,
    Unauthenticated,
)
from giornata.protocol.account.people import Role, SetMember
from giornata.protocol.account.sign_in import (
    ApproveDevice,
    AuthorizeDevice,
    DeviceAuthorization,
    DeviceRefusal,
    DeviceToken,
    FindDevice,
)
from giornata.protocol.project.admin import CreatedKey, CreateKey, RotateKey, Scope

WITHIN_S = 5
DEVICE = Visitor(address="203.0.113.9", agent="giornata")
PAGE = "https://gpu.example.com/device"


@pytest.fixture
def two_projects(ctx: Context) -> Context:
    """The projects ann and bob."""
    move_in(ctx)
    return ctx


def begun(ctx: Context, **fields: object) -> DeviceAuthorization:
    return begin_device(ctx, AuthorizeDevice.model_validate(fields), DEVICE, page_url=PAGE)


def person(ctx: Context, name: str, **roles: Role) -> Caller:
    return signed_in(ctx, signed_in_at(ctx, new_person(ctx, name, roles)).secret, None)


def approved(ctx: Context, caller: Caller, device: DeviceAuthorization, project_id: str | None = None) -> None:
    given = {"user_code": device.user_code} | ({} if project_id is None else {"project_id": project_id})
    approve_device(ctx, caller, ApproveDevice.model_validate(given), HOME)


def taken(ctx: Context, device: DeviceAuthorization) -> DeviceToken:
    token = take_device_key(ctx, device.device_code, DEVICE)
    assert isinstance(token, DeviceToken), token
    return token


def logged_in(ctx: Context, caller: Caller, **fields: object) -> DeviceToken:
    device = begun(ctx, **fields)
    approved(ctx, caller, device)
    return taken(ctx, device)


def test_device_has_a_key_once_the_person_has_approved(two_projects: Context, clock: ManualClock) -> None:
    eve = person(two_projects, "eve", ann=Role.MEMBER)
    device = begun(two_projects, host_name="laptop", key_expires_in_s=3600)
    assert (device.verification_uri, device.interval, device.expires_in) == (PAGE, POLL_INTERVAL_S, CODE_TTL_S)
    assert take_device_key(two_projects, device.device_code, DEVICE) is DeviceRefusal.AUTHORIZATION_PENDING
    clock.advance_s(POLL_INTERVAL_S)
    shown = find_device(two_projects, eve, FindDevice(user_code=device.user_code.lower()), HOME)
    assert (shown.host_name, shown.address, shown.project_id) == ("laptop", DEVICE.address, None)
    assert take_device_key(two_projects, device.device_code, DEVICE) is DeviceRefusal.AUTHORIZATION_PENDING
    approved(two_projects, eve, device)
    token = taken(two_projects, device)
    assert (token.project_id, token.email, token.expires_in) == ("ann", "eve@example.com", 3600)
    assert token.scope == "datasets generate jobs:read jobs:write"
    caller = authenticate(two_projects, token.access_token)
    assert (caller.user_id, caller.project_id, caller.is_login) == (eve.user_id, "ann", True)
    assert take_device_key(two_projects, device.device_code, DEVICE) is DeviceRefusal.INVALID_GRANT
    clock.advance_s(3600)
    with pytest.raises(Unauthenticated):
        authenticate(two_projects, token.access_token)


def test_poll_that_comes_too_soon_has_to_slow_down(two_projects: Context, clock: ManualClock) -> None:
    device = begun(two_projects)

    def poll() -> object:
        return take_device_key(two_projects, device.device_code, DEVICE)

    assert poll() is DeviceRefusal.AUTHORIZATION_PENDING
    clock.advance_s(1)
    assert poll() is DeviceRefusal.SLOW_DOWN
    clock.advance_s(POLL_INTERVAL_S)
    assert poll() is DeviceRefusal.SLOW_DOWN, "five seconds more from now on"
    clock.advance_s(POLL_INTERVAL_S * 3)
    assert poll() is DeviceRefusal.AUTHORIZATION_PENDING


def test_code_expires_for_device_and_person(two_projects: Context, clock: ManualClock) -> None:
    eve = person(two_projects, "eve", ann=Role.MEMBER)
    first, second = begun(two_projects), begun(two_projects)
    approved(two_projects, eve, first)
    clock.advance_s(CODE_TTL_S)
    for device in (first, second):
        assert take_device_key(two_projects, device.device_code, DEVICE) is DeviceRefusal.EXPIRED_TOKEN
        with pytest.raises(NotFound):
            approved(two_projects, eve, device)
    clock.advance_s(KEPT_AFTER_MS / 1000 + 1)
    begun(two_projects)
    assert take_device_key(two_projects, first.device_code, DEVICE) is DeviceRefusal.INVALID_GRANT


def test_denied_device_has_no_key_and_cannot_be_approved(two_projects: Context) -> None:
    eve, kim = person(two_projects, "eve", ann=Role.MEMBER), person(two_projects, "kim", bob=Role.OWNER)
    device = begun(two_projects)
    deny_device(two_projects, eve, FindDevice(user_code=device.user_code), HOME)
    with pytest.raises(NotFound):
        approved(two_projects, kim, device)
    assert take_device_key(two_projects, device.device_code, DEVICE) is DeviceRefusal.ACCESS_DENIED


def test_code_that_another_person_approved_is_theirs_and_nobody_elses(two_projects: Context) -> None:
    eve, kim = person(two_projects, "eve", ann=Role.MEMBER), person(two_projects, "kim", bob=Role.VIEWER)
    device = begun(two_projects)
    approved(two_projects, kim, device)
    with pytest.raises(NotFound):
        approved(two_projects, eve, device)
    token = taken(two_projects, device)
    assert (token.email, token.project_id, token.scope) == ("kim@example.com", "bob", "jobs:read")


def test_of_two_approvals_at_once_one_counts(two_projects: Context) -> None:
    people = [person(two_projects, f"person{number}", ann=Role.MEMBER) for number in range(4)]
    device = begun(two_projects)

    def approve(caller: Caller) -> str | None:
        with suppress(Conflict, NotFound):
            approved(two_projects, caller, device)
            return caller.user_id
        return None

    with ThreadPoolExecutor(4) as pool:
        winners = [each for each in pool.map(approve, people) if each is not None]
    token = taken(two_projects, device)
    assert [authenticate(two_projects, token.access_token).user_id] == winners


def test_of_many_polls_at_once_one_gets_the_key(two_projects: Context) -> None:
    device = begun(two_projects)
    approved(two_projects, person(two_projects, "eve", ann=Role.MEMBER), device)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: take_device_key(two_projects, device.device_code, DEVICE), range(8)))
    assert sum(isinstance(answer, DeviceToken) for answer in answers) == 1
    assert {answer for answer in answers if isinstance(answer, DeviceRefusal)} == {DeviceRefusal.INVALID_GRANT}


def test_key_reaches_no_further_than_the_person_and_than_was_asked(two_projects: Context) -> None:
    boss = person(two_projects, "boss", ann=Role.OWNER)
    viewer = person(two_projects, "viewer", ann=Role.VIEWER)
    assert logged_in(two_projects, boss).scope == "datasets generate jobs:read jobs:write"
    assert logged_in(two_projects, boss, scope="jobs:read generate").scope == "generate jobs:read"
    assert "admin" in logged_in(two_projects, boss, scope="admin").scope.split()
    assert logged_in(two_projects, viewer, scope="admin").scope == "jobs:read"
    device = begun(two_projects, scope="jobs:write")
    with pytest.raises(Forbidden):
        approved(two_projects, viewer, device)
    nobody = person(two_projects, "nobody")
    with pytest.raises(Forbidden):
        approved(two_projects, nobody, device)
    for project_id in ("bob", "nowhere", "NO ID"):
        with pytest.raises(NotFound):
            approved(two_projects, viewer, device, project_id)


def test_project_that_the_device_asked_for_is_kept(two_projects: Context) -> None:
    eve = person(two_projects, "eve", ann=Role.MEMBER, bob=Role.VIEWER)
    device = begun(two_projects, project_id="bob")
    approved(two_projects, eve, device, "ann")
    assert taken(two_projects, device).project_id == "bob"
    with pytest.raises(NotFound):
        approved(two_projects, person(two_projects, "kim", ann=Role.OWNER), begun(two_projects, project_id="bob"))


def test_role_that_was_lost_after_the_approval_is_not_in_the_key(two_projects: Context) -> None:
    eve = person(two_projects, "eve", ann=Role.MEMBER)
    first, second = begun(two_projects), begun(two_projects)
    for device in (first, second):
        approved(two_projects, eve, device)
    assert eve.user_id is not None
    set_member(two_projects, ROOT, "ann", eve.user_id, SetMember(role=Role.VIEWER))
    assert taken(two_projects, first).scope == "jobs:read"
    remove_member(two_projects, ROOT, "ann", eve.user_id)
    assert take_device_key(two_projects, second.device_code, DEVICE) is DeviceRefusal.ACCESS_DENIED


def test_key_of_a_person_who_leaves_ends_on_every_server_within_five_seconds(
    two_projects: Context, clock: ManualClock
) -> None:
    eve = person(two_projects, "eve", ann=Role.MEMBER)
    token, replica = logged_in(two_projects, eve), replace(two_projects, memory=ProcessCache())
    made = create_key(
        two_projects, authenticate(two_projects, token.access_token), CreateKey(scopes=(Scope.JOBS_READ,))
    )
    for secret in (token.access_token, made.secret):
        authenticate(replica, secret)
    assert eve.user_id is not None
    remove_member(two_projects, ROOT, "ann", eve.user_id)
    clock.advance_s(WITHIN_S)
    for server in (two_projects, replica):
        for secret in (token.access_token, made.secret):
            with pytest.raises(Unauthenticated):
                authenticate(server, secret)


def test_guesses_are_bounded_by_person_and_by_address(two_projects: Context, clock: ManualClock) -> None:
    device, visitor = begun(two_projects), Visitor(address="198.51.100.4", agent="a browser")
    guesser = person(two_projects, "guesser", ann=Role.MEMBER)

    def guess(caller: Caller, at: Visitor, number: int) -> type[Exception]:
        try:
            find_device(two_projects, caller, FindDevice(user_code=user_code_from(f"guess {number}")), at)
        except GiornataError as error:
            return type(error)
        raise AssertionError("a guess was right")

    answers = [guess(guesser, visitor, number) for number in range(40)]
    assert answers[:5] == [NotFound] * 5
    assert set(answers[5:]) == {SignInDelayed}
    for code in (device.user_code, "nonsense"):
        with pytest.raises(SignInDelayed):
            find_device(two_projects, guesser, FindDevice(user_code=code), HOME)
    colleague = person(two_projects, "colleague", ann=Role.MEMBER)
    assert guess(colleague, visitor, 0) is SignInDelayed, "the address waits, whoever is behind it"
    approved(two_projects, colleague, device)
    tries = 5
    for number in range(CODE_TTL_S):
        clock.advance_s(1)
        tries += guess(guesser, visitor, number) is NotFound
    assert tries < 16, "for as long as a code lives"


def test_own_codes_do_not_pay_for_guesses(two_projects: Context) -> None:
    eve = person(two_projects, "eve", ann=Role.MEMBER)
    with pytest.raises(SignInDelayed):
        for number in range(6):
            own = begun(two_projects)
            find_device(two_projects, eve, FindDevice(user_code=own.user_code), HOME)
            with pytest.raises(NotFound):
                find_device(two_projects, eve, FindDevice(user_code=user_code_from(f"guess {number}")), HOME)


def test_devices_of_one_address_are_bounded(two_projects: Context, clock: ManualClock) -> None:
    for _ in range(MOST_WAITING_PER_ADDRESS):
        begun(two_projects)
    with pytest.raises(TooMany):
        begun(two_projects)
    begin_device(two_projects, AuthorizeDevice(), HOME, page_url=PAGE)
    clock.advance_s(CODE_TTL_S)
    begun(two_projects)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"scope": "node"}, ["scope"]),
        ({"scope": " "}, ["scope"]),
        ({"scope": "jobs:read everything"}, ["scope"]),
        ({"host_name": "a\x1b[31m", "scope": "root", "project_id": "../x"}, ["host_name", "scope", "project_id"]),
    ],
)
def test_device_is_told_every_fault(two_projects: Context, fields: dict[str, str], where: list[str]) -> None:
    with pytest.raises(InvalidInput) as told:
        begun(two_projects, **fields)
    assert [fault.where for fault in told.value.faults] == where


def test_only_a_session_approves(two_projects: Context) -> None:
    eve = person(two_projects, "eve", ann=Role.OWNER)
    login = authenticate(two_projects, logged_in(two_projects, eve, scope="admin").access_token)
    device = begun(two_projects)
    for caller in (login, ROOT):
        with pytest.raises(Forbidden):
            approved(two_projects, caller, device)
        with pytest.raises(Forbidden):
            deny_device(two_projects, caller, FindDevice(user_code=device.user_code), HOME)
    assert take_device_key(two_projects, device.device_code, DEVICE) is DeviceRefusal.AUTHORIZATION_PENDING


def key_of(ctx: Context, caller: Caller, *scopes: Scope, **more: object) -> CreatedKey:
    return create_key(ctx, caller, CreateKey.model_validate({"scopes": scopes, **more}))


def test_login_makes_keys_that_reach_no_further_and_last_no_longer(two_projects: Context) -> None:
    eve = person(two_projects, "eve", ann=Role.MEMBER)
    token = logged_in(two_projects, eve, scope="jobs:read generate", key_expires_in_s=3600)
    login = authenticate(two_projects, token.access_token)
    made = key_of(two_projects, login, Scope.JOBS_READ, expires_in_s=7200)
    assert made.expires_at is not None
    assert made.expires_at.timestamp() * 1000 == two_projects.clock.now_ms() + 3_600_000
    assert not made.login
    for scope in (Scope.DATASETS, Scope.MEMBER, Scope.ADMIN, Scope.NODE):
        with pytest.raises(Forbidden):
            key_of(two_projects, login, scope)
    with pytest.raises(InvalidInput):
        key_of(two_projects, login, Scope.JOBS_READ, login=True)
    with pytest.raises(NotFound):
        key_of(two_projects, login, Scope.JOBS_READ, project_id="bob")
    with pytest.raises(Forbidden):
        key_of(two_projects, authenticate(two_projects, made.secret), Scope.JOBS_READ)


def test_login_sees_and_ends_the_persons_keys_alone(two_projects: Context) -> None:
    eve, kim = person(two_projects, "eve", ann=Role.MEMBER), person(two_projects, "kim", ann=Role.MEMBER)
    login = authenticate(two_projects, logged_in(two_projects, eve).access_token)
    own, other = key_of(two_projects, login, Scope.JOBS_READ), key_of(two_projects, kim, Scope.JOBS_READ)
    assert {each.id for each in list_keys(two_projects, login, None, 100).items} == {login.key_id, own.id}
    with pytest.raises(NotFound):
        revoke_key(two_projects, login, other.id)
    assert revoke_key(two_projects, login, own.id).revoked_at is not None


def test_login_rotates_no_key_that_reaches_further_or_lasts_longer(two_projects: Context) -> None:
    eve = person(two_projects, "eve", ann=Role.MEMBER)
    wide, lasting = (
        key_of(two_projects, eve, Scope.MEMBER, expires_in_s=60),
        key_of(two_projects, eve, Scope.JOBS_READ),
    )
    login = authenticate(two_projects, logged_in(two_projects, eve, scope="jobs:read").access_token)
    for key in (wide, lasting):
        with pytest.raises(Forbidden):
            rotate_key(two_projects, login, key.id, RotateKey())
    own = key_of(two_projects, login, Scope.JOBS_READ)
    assert rotate_key(two_projects, login, own.id, RotateKey()).secret != own.secret
    renewed = rotate_key(two_projects, login, login.key_id, RotateKey(overlap_s=0))
    assert authenticate(two_projects, renewed.secret).is_login


def test_every_key_ends_itself_and_no_other(two_projects: Context) -> None:
    eve = person(two_projects, "eve", ann=Role.MEMBER)
    first, second = (key_of(two_projects, eve, Scope.JOBS_READ) for _ in range(2))
    caller = authenticate(two_projects, first.secret)
    with pytest.raises(Forbidden):
        revoke_key(two_projects, caller, second.id)
    revoke_key(two_projects, caller, first.id)
    with pytest.raises(Unauthenticated):
        authenticate(two_projects, first.secret)
    authenticate(two_projects, second.secret)


ACTIONS = ("poll", "wait", "expire", "guess", "approve a", "approve b", "deny a", "leave a", "demote b")


@dataclass(slots=True)
class Expected:
    """What the person's clicks allow so far."""

    decided: str | None = None
    expired: bool = False
    gone: bool = False
    demoted: bool = False
    tokens: int = 0


@settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(actions=st.lists(st.sampled_from(ACTIONS), min_size=3, max_size=14))
def test_key_exists_only_after_the_click_of_a_member(
    two_projects: Context, clock: ManualClock, actions: list[str]
) -> None:
    clock.advance_s(24 * 3600)  # what was counted before is forgotten
    number = two_projects.names.seed()
    a, b = (person(two_projects, f"{name}{number}", ann=Role.MEMBER) for name in "ab")
    device, known = begun(two_projects), Expected()
    for action in actions:
        act(two_projects, clock, device, {"a": a, "b": b}, known, action)


def act(
    ctx: Context,
    clock: ManualClock,
    device: DeviceAuthorization,
    people: dict[str, Caller],
    known: Expected,
    action: str,
) -> None:
    word, _, name = action.partition(" ")
    if word == "poll":
        answer = take_device_key(ctx, device.device_code, DEVICE)
        if isinstance(answer, DeviceToken):
            known.tokens += 1
            assert known.tokens == 1
            assert not known.expired
            assert known.decided in {"a", "b"}
            assert known.decided == "b" or not known.gone
            assert authenticate(ctx, answer.access_token).user_id == people[known.decided].user_id
            assert (answer.scope == "jobs:read") is (known.decided == "b" and known.demoted)
        elif known.decided == "denied":
            assert answer is DeviceRefusal.ACCESS_DENIED
        elif known.decided is None and not known.expired:
            assert answer in {DeviceRefusal.AUTHORIZATION_PENDING, DeviceRefusal.SLOW_DOWN}
    elif word in {"wait", "expire"}:
        clock.advance_s(POLL_INTERVAL_S if word == "wait" else CODE_TTL_S)
        known.expired |= word == "expire"
    elif word == "guess":
        with pytest.raises((NotFound, SignInDelayed)):
            find_device(ctx, people["b"], FindDevice(user_code=user_code_from("a guess")), HOME)
    elif word in {"approve", "deny"}:
        with suppress(NotFound, SignInDelayed):
            if word == "approve":
                approved(ctx, people[name], device, "ann")
            else:
                deny_device(ctx, people[name], FindDevice(user_code=device.user_code), HOME)
            assert known.decided is None
            assert not known.expired
            assert word == "deny" or name == "b" or not known.gone
            known.decided = name if word == "approve" else "denied"
    elif word == "leave":
        with suppress(NotFound):
            remove_member(ctx, ROOT, "ann", str(people["a"].user_id))
        known.gone = True
    else:
        set_member(ctx, ROOT, "ann", str(people["b"].user_id), SetMember(role=Role.VIEWER))
        known.demoted = True
