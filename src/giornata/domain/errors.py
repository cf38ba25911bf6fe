"""Every error that Giornata raises on purpose.

    GiornataError
    ├── InvalidInput            400 invalid-input          what was sent is wrong; carries every fault at once
    │   └── OverQuota           403 over-quota             limits of the project have no room for what was asked
    ├── Unauthenticated         401 unauthenticated        no key, or one that is unknown or revoked
    ├── Forbidden               403 forbidden              the key's scope does not reach this
    ├── NotFound                404 not-found              no such thing in this project
    ├── Conflict                409 conflict
    │   ├── IllegalTransition   409 illegal-transition     the job's state does not allow it
    │   ├── LeaseLost           409 lease-lost             the attempt has ended; the node drops the job
    │   ├── BlobMissing         409 blob-missing           bytes that were named are not there
    │   ├── BlobMismatch        409 blob-mismatch          bytes are there and are not what was named
    │   ├── ProtocolMismatch    409 protocol-mismatch      node and server speak no common version
    │   └── KeyInFlight         409 idempotency-in-flight  the first request with this key is still running
    ├── IdempotencyMismatch     422 idempotency-mismatch   the key was used with another body
    ├── OverBudget              402 over-budget            the project has no money left for what was asked
    ├── TooLarge                413 too-large
    ├── InstanceGone            404 instance-gone          the provider lists no such instance any more
    ├── FleetRefused            409 fleet-refused          the provider will not do it, however often it is asked
    └── Unavailable             503 unavailable            try again later
        ├── Unreachable         503 unreachable            raised by clients only: nobody answers at the address
        ├── FleetUnavailable    503 fleet-unavailable      the provider cannot be asked just now
        ├── TooMany             429 too-many               the key or the project has as many of these open as it may
        │   ├── RateLimited     429 rate-limited           more requests a second than the project or the key may send
        │   └── SignInDelayed   429 sign-in-delayed        too many sign-ins failed; the next one has to wait
        └── TooSlow             408 too-slow               the request did not arrive in time

`WorkloadFailed` is apart from the tree: it ends an attempt inside the engine, and no HTTP request ever sees it.
The HTTP status is written here for the reader; `giornata.api.replies.problems` is the one place that maps it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from giornata.domain.jobs.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault in the input that a client sent.

    `where` names the field (`spec.rank`) or the file (`IMG_0012.jpg`); `message` says what is wrong;
    `hint` says what to do about it.
    """

    where: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" + (f" ({self.hint})" if self.hint else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFault(Fault):
    """A fault that is a limit of the project, named by `quota`: how much it allows, how much of it is used, and when
    there will be room (epoch milliseconds). What is not known is None.
    """

    quota: str
    limit: int | None = None
    used: int | None = None
    free_at_ms: int | None = None


class GiornataError(Exception):
    """Root of the tree. `code` is stable and part of the HTTP contract. `hint` is the next step, for a person."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        self.hint = hint
        super().__init__(message)

    @property
    def public(self) -> str:
        """The message for tenants. The text of the error itself is for the operator of the server."""
        return str(self)


class InvalidInput(GiornataError):
    """The input is invalid. The error lists every fault, not only the first."""

    code = "invalid-input"

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(map(str, self.faults)))


class OverQuota(InvalidInput):
    """Nothing is wrong with the request but that limits of the project have no room for it. All faults are
    QuotaFaults, where a server raises it.
    """

    code = "over-quota"


@contextmanager
def collecting(faults: list[Fault]) -> Iterator[None]:
    """Add what an InvalidInput carries to `faults` instead of letting it through: the next check has its turn."""
    try:
        yield
    except InvalidInput as error:
        faults += error.faults


class Unauthenticated(GiornataError):
    """The request has no key, or its key is unknown or revoked."""

    code = "unauthenticated"


class Forbidden(GiornataError):
    """The key is good, but its scope does not reach this."""

    code = "forbidden"


class NotFound(GiornataError):
    """The object does not exist, or belongs to another project: the two answers are the same."""

    code = "not-found"


class Conflict(GiornataError):
    """The present state does not allow it."""

    code = "conflict"


class IllegalTransition(Conflict):
    """The transition table has no row for this state and event."""

    code = "illegal-transition"


class LeaseLost(Conflict):
    """The attempt has ended: all further work of this node for it is void."""

    code = "lease-lost"


class BlobMissing(Conflict):
    """Bytes that were named are not in storage."""

    code = "blob-missing"


class BlobMismatch(Conflict):
    """Bytes are in storage, but their size or sha256 is not what was named."""

    code = "blob-mismatch"


class ProtocolMismatch(Conflict):
    """Node and server speak no common version of their protocol: one of them has to be upgraded."""

    code = "protocol-mismatch"


class KeyInFlight(Conflict):
    """The first request with this Idempotency-Key has not finished yet."""

    code = "idempotency-in-flight"
    retryable = True


class IdempotencyMismatch(GiornataError):
    """The Idempotency-Key was used before, with another body."""

    code = "idempotency-mismatch"


class OverBudget(GiornataError):
    """The project's budget has no room for what was asked: raise the budget, or ask for less."""

    code = "over-budget"


class TooLarge(GiornataError):
    """A body, a header or a file is over its bound."""

    code = "too-large"


class Unavailable(GiornataError):
    """The thing cannot be done just now; the same request may succeed later.

    `public` is given where the message names an address or a path that is no business of tenants.
    """

    code = "unavailable"
    retryable = True

    def __init__(self, message: str = "", *, public: str | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self._public = public

    @property
    def public(self) -> str:
        return self._public or str(self)


class Unreachable(Unavailable):
    """The server's address gives no answer in its protocol. Clients raise this error; no server sends it."""

    code = "unreachable"


class FleetUnavailable(Unavailable):
    """The provider of a fleet is away, overloaded, or asks for patience, for `retry_after_s` if it says."""

    code = "fleet-unavailable"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class FleetRefused(GiornataError):
    """The provider will not do it, however often it is asked: a key, a quota, a name, a value is wrong."""

    code = "fleet-refused"


class InstanceGone(NotFound):
    """The provider lists no such instance any more."""

    code = "instance-gone"


class TooMany(Unavailable):
    """The key or the project has as many streams or other connections open as it may have on one server.

    `quota` says how many these are, where a setting bounds them.
    """

    code = "too-many"

    def __init__(self, message: str = "", *, quota: QuotaFault | None = None) -> None:
        self.quota = quota
        super().__init__(message)


class RateLimited(TooMany):
    """More requests a second came than the project or the key may send: `limit` of them. There is room again in
    `retry_after_s` seconds.
    """

    code = "rate-limited"

    def __init__(self, message: str, *, limit: int = 0, retry_after_s: int = 1) -> None:
        self.limit, self.retry_after_s = limit, retry_after_s
        super().__init__(message)


class SignInDelayed(TooMany):
    """Sign-ins to this account from this address failed too often; the next one is taken after `retry_after_s`."""

    code = "sign-in-delayed"

    def __init__(self, message: str, *, retry_after_s: int = 0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class TooSlow(Unavailable):
    """The request's body did not arrive in the time that its length allows."""

    code = "too-slow"


def in_short(faults: Sequence[Fault]) -> str:
    """Return the first two faults in one line. All faults travel beside the message, so it need not repeat them."""
    more = len(faults) - 2
    return "; ".join(str(fault) for fault in faults[:2]) + (f"; and {more} more" if more > 0 else "")


class WorkloadFailed(Exception):
    """The attempt cannot go on, for a known reason. The engine reports `reason`, `message` and `faults`."""

    def __init__(self, reason: Reason, message: str, faults: tuple[Fault, ...] = ()) -> None:
        super().__init__(message)
        self.reason, self.message, self.faults = reason, message, faults


def install_hint(*extras: str) -> str:
    """The command that installs these extras, from a clone.

    No package index has Giornata, and the name is free there: a command that installs from an index may run code of
    another author.
    """
    return f"in a clone of Giornata: pip install -c constraints.txt '.[{','.join(extras)}]'"
