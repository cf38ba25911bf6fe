"""The caller of a use case: which project, and what the key or the session allows."""

from dataclasses import dataclass, field

from giornata.control.ports.identities import WorkloadIdentity
from giornata.protocol.project.admin import ROOT_PROJECT, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOrigin:
    """The place that a request came from, as the audit log keeps it: the client's address and the request's id."""

    address: str = ""
    request_id: str = ""


NO_REQUEST = RequestOrigin()


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The owner of the key or of the session that came with the request. `workload` is given when it was a provider's
    token instead.

    `key_id` is the id of the key or of the session. `user_id` is the person behind either, where there is one. A key
    may end at `expires_at_ms`. A key that `giornata login` got is a `login`.
    A node's key may be bound to one `fleet`, and allows its nodes a price up to `max_price_micro_usd_per_hour`.
    `origin` is the place that this request came from.
    """

    project_id: str
    scopes: frozenset[Scope]
    key_id: str
    user_id: str | None = None
    is_session: bool = False
    is_login: bool = False
    workload: WorkloadIdentity | None = None
    expires_at_ms: int | None = None
    fleet: str | None = None
    max_price_micro_usd_per_hour: int | None = None
    origin: RequestOrigin = field(default=NO_REQUEST, compare=False)

    @property
    def maker(self) -> str:
        """The id that rows keep as `created_by`: the person of a session, else the key."""
        return self.user_id if self.is_session and self.user_id is not None else self.key_id

    @property
    def acts_as_person(self) -> bool:
        """True for a session and for the key of a login: both make and end keys of the person's own."""
        return (self.is_session or self.is_login) and self.user_id is not None

    @property
    def serves_all_projects(self) -> bool:
        """True for a node of the operator, which works for every project. A project's own node works for its project
        only.
        """
        return Scope.NODE in self.scopes and self.project_id == ROOT_PROJECT

    @property
    def owns_machines(self) -> str | None:
        """The project whose own machines a node of this key is on; None: the operator's machines.

        Only the operator binds a key to a fleet, and gives such a key to machines of that fleet.
        """
        return None if self.project_id == ROOT_PROJECT or self.fleet is not None else self.project_id

    @property
    def is_root_admin(self) -> bool:
        """True when the caller may govern the installation."""
        return Scope.ADMIN in self.scopes and self.project_id == ROOT_PROJECT
