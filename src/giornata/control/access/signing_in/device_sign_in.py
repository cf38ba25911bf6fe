"""Sign in a device that has no browser (RFC 8628): it shows a code, and a person approves it elsewhere.

The key is made when the device asks for it, so that its secret is stored nowhere. It reaches no further than the
person did at the approval and does now.
"""

import hashlib
from dataclasses import replace

from giornata.control.access.keys import draw_key, secret_hash
from giornata.control.access.permissions import read_scopes, stored_scopes, verbs_of
from giornata.control.access.reach import reach_of_person
from giornata.control.access.signing_in.sessions import Visitor, require_person, visiting
from giornata.control.access.signing_in.sign_in import COUNTED_MS, FORGOTTEN_AT_ONCE, network_of
from giornata.control.audit_log.record import AuditActor, record, record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.people_store import FailedSignIns
from giornata.control.ports.user_queries.records import KeyRecord
from giornata.control.ports.user_queries.sign_in_store import DeviceSignInRecord, DeviceState
from giornata.control.text_limits import is_id, text_faults
from giornata.control.timestamps import instant
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.accounts.sign_in import pause_after_s
from giornata.domain.accounts.user_codes import read_user_code, user_code_from
from giornata.domain.errors import (
    Conflict,
    Fault,
    Forbidden,
    InvalidInput,
    NotFound,
    SignInDelayed,
    TooMany,
    Unavailable,
)
from giornata.protocol.account.sign_in import (
    ApproveDevice,
    AuthorizeDevice,
    DeviceAuthorization,
    DeviceRefusal,
    DeviceRequest,
    DeviceToken,
    FindDevice,
)
from giornata.protocol.project.admin import ROOT_PROJECT, Scope

CODE_TTL_S = 600
KEPT_AFTER_MS = 3600 * 1000
POLL_INTERVAL_S = 5
SLOWER_BY_S = 5  # RFC 8628, section 3.5
MOST_WAITING_PER_ADDRESS = 20
DRAWS = 3
REFUSAL = "no device waits with this code; compare it with the device, or begin there again"


def begin_device(ctx: Context, request: AuthorizeDevice, visitor: Visitor, *, page_url: str) -> DeviceAuthorization:
    """Draw the two codes of a sign-in. `page_url` is where a person types the shorter one.

    Raises InvalidInput for scopes that no person's key has, and TooMany when too many devices of this address wait.
    """
    verbs, now_ms, address = _asked_verbs(request), ctx.clock.now_ms(), network_of(visitor.address)
    with ctx.store.begin() as tx:
        tx.device_sign_ins.forget(expired_before_ms=now_ms - KEPT_AFTER_MS, limit=FORGOTTEN_AT_ONCE)
        if tx.device_sign_ins.waiting(address, at_ms=now_ms) >= MOST_WAITING_PER_ADDRESS:
            raise TooMany(f"{MOST_WAITING_PER_ADDRESS} devices of this address wait for a person; try again later")
        for _ in range(DRAWS):
            device_code, user_code = f"gd_{ctx.names.secret()}", user_code_from(ctx.names.secret())
            device = DeviceSignInRecord(
                id=ctx.names.new("device"),
                device_code_sha256=secret_hash(device_code),
                user_code_sha256=secret_hash(user_code),
                scope=stored_scopes(verbs),
                project_id=request.project_id,
                host_name=request.host_name,
                address=address,
                key_expires_in_s=request.key_expires_in_s,
                created_at_ms=now_ms,
                expires_at_ms=now_ms + CODE_TTL_S * 1000,
                interval_s=POLL_INTERVAL_S,
            )
            if tx.device_sign_ins.add(device):
                return _authorization(device_code, user_code, page_url)
    raise Unavailable("no free code was drawn; try again")


def _authorization(device_code: str, user_code: str, page_url: str) -> DeviceAuthorization:
    return DeviceAuthorization(
        device_code=device_code,
        user_code=user_code,
        verification_uri=page_url,
        verification_uri_complete=f"{page_url}?user_code={user_code}",
        expires_in=CODE_TTL_S,
        interval=POLL_INTERVAL_S,
    )


def _asked_verbs(request: AuthorizeDevice) -> frozenset[Scope]:
    """Return the verbs that the device asks for. Raises InvalidInput with every fault."""
    known, words = {scope.value for scope in Scope} - {Scope.NODE}, request.scope.split()
    strange = sorted(set(words) - known)
    faults = [*text_faults("host_name", request.host_name)]
    if strange or not words:
        message = f"holds {', '.join(strange)[:64]}, which is no scope of a person's key" if words else "is empty"
        faults.append(Fault(where="scope", message=message, hint=f"of {' '.join(sorted(known))}"))
    if request.project_id is not None and not is_id(request.project_id):
        faults.append(Fault(where="project_id", message="is not the id of a project"))
    if faults:
        raise InvalidInput(faults)
    return verbs_of(map(Scope, words))


def find_device(ctx: Context, caller: Caller, request: FindDevice, visitor: Visitor) -> DeviceRequest:
    """Return what the device with this code asks for. Raises Forbidden without a person, NotFound, SignInDelayed."""
    return _shown(request.user_code, _found(ctx, require_person(caller), request.user_code, visitor))


def approve_device(ctx: Context, caller: Caller, request: ApproveDevice, visitor: Visitor) -> DeviceRequest:
    """Let the device have a key of the person's, with what the person reaches of the scopes that it asked for.

    Raises Forbidden without a person, and where nothing would be left; NotFound for an unknown code or project;
    Conflict for a code that was just approved or denied; SignInDelayed.
    """
    user_id = require_person(caller)
    device = _found(ctx, user_id, request.user_code, visitor)
    project_id = device.project_id or request.project_id or caller.project_id
    with ctx.store.begin() as tx:
        scopes = _granted(tx, user_id, project_id, device.scope)
        scope, now_ms = stored_scopes(scopes), ctx.clock.now_ms()
        if not tx.device_sign_ins.approve(
            device.id, user_id=user_id, project_id=project_id, scope=scope, at_ms=now_ms
        ):
            raise Conflict("this code was used a moment ago")
        changes = {"project": project_id, "scopes": sorted(scopes)}
        verb, root = AuditVerb.DEVICE_APPROVE, ROOT_PROJECT
        record_call(tx, caller, verb, device.id, at_ms=now_ms, project_id=root, changes=changes)
    return _shown(request.user_code, replace(device, scope=scope, project_id=project_id))


def deny_device(ctx: Context, caller: Caller, request: FindDevice, visitor: Visitor) -> DeviceRequest:
    """Let the device have no key. Raises Forbidden without a person, NotFound, Conflict, SignInDelayed."""
    user_id = require_person(caller)
    device = _found(ctx, user_id, request.user_code, visitor)
    with ctx.store.begin() as tx:
        now_ms = ctx.clock.now_ms()
        if not tx.device_sign_ins.deny(device.id, user_id=user_id, at_ms=now_ms):
            raise Conflict("this code was used a moment ago")
        record_call(tx, caller, AuditVerb.DEVICE_DENY, device.id, at_ms=now_ms, project_id=ROOT_PROJECT)
    return _shown(request.user_code, device)


def _granted(tx: Transaction, user_id: str, project_id: str, asked: str) -> frozenset[Scope]:
    if not project_id:
        raise Forbidden("you are in no project yet; ask for an invitation to one")
    reach = reach_of_person(tx, user_id, project_id) - {Scope.NODE}
    if not reach or not is_id(project_id) or tx.projects.get(project_id) is None:
        raise NotFound(f"there is no project {project_id}")
    scopes = read_scopes(asked) & reach
    if not scopes:
        raise Forbidden(f"your role in the project has none of the scopes {asked}, which the device asks for")
    return scopes


def _found(ctx: Context, user_id: str, typed: str, visitor: Visitor) -> DeviceSignInRecord:
    """Return the sign-in that waits with this code. A wrong code counts as a failure of the person and the address.

    The counts are locked before the code is looked up: however many tries come at once, each is counted. Success
    clears no count, or one's own codes would pay for guesses. Raises NotFound, SignInDelayed.
    """
    user_code, now_ms, device = read_user_code(typed), ctx.clock.now_ms(), None
    # A person and an address are always locked in this order.
    everybody = (_counted_as("device codes"), network_of(visitor.address))
    places = ((_counted_as(f"device codes of {user_id}"), ""), everybody)
    with ctx.store.begin() as tx:
        tx.sign_ins.forget(latest_before_ms=now_ms - COUNTED_MS, limit=FORGOTTEN_AT_ONCE)
        counts = [tx.sign_ins.lock(*place, at_ms=now_ms) for place in places]
        closed_ms = max(count.closed_until_ms for count in counts) - now_ms
        if closed_ms <= 0 and user_code is not None:
            device = tx.device_sign_ins.by_user_code(secret_hash(user_code), at_ms=now_ms)
        if closed_ms <= 0 and device is None:
            for place, count in zip(places, counts, strict=True):
                failures = count.failures + 1
                failed = FailedSignIns(failures=failures, closed_until_ms=now_ms + pause_after_s(failures) * 1000)
                tx.sign_ins.note(*place, failed, at_ms=now_ms)
    if closed_ms > 0:
        left_s = -(-closed_ms // 1000)
        raise SignInDelayed(f"too many codes were wrong; the next one is taken in {left_s} s", retry_after_s=left_s)
    if device is None:
        raise NotFound(REFUSAL)
    return device


def _counted_as(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def take_device_key(ctx: Context, device_code: str, visitor: Visitor) -> DeviceToken | DeviceRefusal:
    """Return the key of a device whose sign-in was approved, once; else why there is none."""
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        device = tx.device_sign_ins.lock(secret_hash(device_code))
        if device is None or device.state == DeviceState.TAKEN:
            return DeviceRefusal.INVALID_GRANT
        if device.state == DeviceState.DENIED:
            return DeviceRefusal.ACCESS_DENIED
        if device.expires_at_ms <= now_ms:
            return DeviceRefusal.EXPIRED_TOKEN
        if device.state == DeviceState.PENDING:
            return _polled(tx, device, now_ms)
        return _taken(ctx, tx, device, visitor)


def _polled(tx: Transaction, device: DeviceSignInRecord, now_ms: int) -> DeviceRefusal:
    # Clocks and networks jitter: half a second too early is no fault.
    due_ms = 0 if device.polled_at_ms is None else device.polled_at_ms + device.interval_s * 1000 - 500
    too_soon = now_ms < due_ms
    interval_s = min(device.interval_s + SLOWER_BY_S, CODE_TTL_S) if too_soon else device.interval_s
    tx.device_sign_ins.polled(device.id, at_ms=now_ms, interval_s=interval_s)
    return DeviceRefusal.SLOW_DOWN if too_soon else DeviceRefusal.AUTHORIZATION_PENDING


def _taken(
    ctx: Context, tx: Transaction, device: DeviceSignInRecord, visitor: Visitor
) -> DeviceToken | DeviceRefusal:
    # The person may have left the project since the approval.
    user = None if device.user_id is None else tx.users.lock(device.user_id)
    if user is None or device.project_id is None:
        return DeviceRefusal.ACCESS_DENIED
    scopes = read_scopes(device.scope) & reach_of_person(tx, user.id, device.project_id)
    if not scopes or not tx.device_sign_ins.take(device.id):
        return DeviceRefusal.ACCESS_DENIED
    name, scope = f"giornata login on {device.host_name}"[:128], stored_scopes(scopes)
    secret, key = draw_key(ctx, project_id=device.project_id, scope=scope, name=name)
    expires_at_ms = key.created_at_ms + device.key_expires_in_s * 1000
    key = replace(key, created_by=user.id, user_id=user.id, expires_at_ms=expires_at_ms, login=True)
    tx.keys.add(key)
    _record_key(tx, key, visiting(user, visitor, session_id=key.id), device)
    return DeviceToken(
        access_token=secret,
        expires_in=device.key_expires_in_s,
        scope=" ".join(sorted(scopes)),
        key_id=key.id,
        project_id=key.project_id,
        email=user.email,
    )


def _record_key(tx: Transaction, key: KeyRecord, actor: AuditActor, device: DeviceSignInRecord) -> None:
    changes = {"scopes": sorted(read_scopes(key.scope)), "expires_at_ms": key.expires_at_ms, "device": device.id}
    verb, owner = AuditVerb.KEY_CREATE, key.project_id
    record(tx, actor, verb, key.id, at_ms=key.created_at_ms, project_id=owner, changes=changes)


def _shown(typed: str, device: DeviceSignInRecord) -> DeviceRequest:
    return DeviceRequest(
        user_code=read_user_code(typed) or "",
        scopes=tuple(sorted(read_scopes(device.scope))),
        project_id=device.project_id,
        host_name=device.host_name,
        address=device.address,
        key_expires_in_s=device.key_expires_in_s,
        created_at=instant(device.created_at_ms),
        expires_at=instant(device.expires_at_ms),
    )
