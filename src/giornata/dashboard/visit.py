"""One request of a person who signed in, and the routes that turn it into a page or an action."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from urllib.parse import parse_qsl, urlencode

import anyio.to_thread
from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.routing import Route

from giornata.control.access.authenticate import remembered_person, signed_in
from giornata.control.access.me import caller_alone, read_me
from giornata.control.access.signing_in.sessions import REFUSAL, csrf_token, require_csrf
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.dashboard.shared_parts import KEPT_MS, MadePart, PartKey, SharedParts, key_of
from giornata.domain.errors import Fault, InvalidInput, Unauthenticated
from giornata.protocol.account.people import CSRF_HEADER, Me
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.web.request_limits import count_in_thread, counted_at_once
from giornata.web.session_cookies import session_secret

ROOT = "/dashboard"
CSRF_FIELD = "csrf"
MOST_FIELDS = 2000
SAFE_METHODS = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True)
class SubmittedForm:
    """The fields of a submitted form, in their order. A name may come several times."""

    pairs: Sequence[tuple[str, str]] = ()

    def get(self, name: str, default: str = "") -> str:
        """Return the first value of this name without the white space around it."""
        return next((value.strip() for key, value in self.pairs if key == name), default)

    def all(self, name: str) -> list[str]:
        """Return every value of this name."""
        return [value for key, value in self.pairs if key == name]

    def typed(self) -> Mapping[str, str]:
        """Return what a page shows again after a refusal: all fields but the token."""
        return MappingProxyType({key: value for key, value in self.pairs if key != CSRF_FIELD})


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A request with the person behind it. `form` is empty for a GET."""

    request: Request
    ctx: Context
    caller: Caller
    me: Me
    csrf: str = field(repr=False)
    form: SubmittedForm = field(default_factory=SubmittedForm)

    @property
    def project_id(self) -> str:
        """The project of the page; empty for a person without one."""
        return self.caller.project_id

    @property
    def operates(self) -> bool:
        """True when the person is an operator, in whichever project the page is."""
        return self.me.user is not None and self.me.user.operator

    def governing(self) -> Caller:
        """Return the person as who governs the installation. Raises Forbidden for everybody but operators."""
        return signed_in(self.ctx, session_secret(self.request) or "", ROOT_PROJECT)

    def path(self, name: str) -> str:
        """Return a part of the address, such as the id of a job."""
        return str(self.request.path_params[name])

    def query(self, name: str) -> str | None:
        """Return a parameter of the query; None when it is missing or empty."""
        return self.request.query_params.get(name) or None

    def may(self, *scopes: Scope) -> bool:
        """Return True when the person has one of these scopes in the project."""
        return not self.caller.scopes.isdisjoint(scopes)

    def url(self, path: str = "", **query: str | None) -> str:
        """Return the address of a page of this project. A parameter that is None is left out."""
        given = {name: value for name, value in query.items() if value is not None}
        return project_url(self.project_id, path) + (f"?{urlencode(given)}" if given else "")

    def projects(self) -> list[str]:
        """Return the projects that the person may choose from."""
        operators = [ROOT_PROJECT] if self.operates else []
        own = [each.project_id for each in self.me.projects]
        return list(dict.fromkeys([*operators, *own, *filter(None, [self.project_id])]))


Verb = Callable[[Visit], Response]


def project_url(project_id: str, path: str = "") -> str:
    """Return the address of a page of a project."""
    return f"{ROOT}/projects/{project_id}{path}"


def page(path: str, verb: Verb) -> Route:
    """Return the route of a page below /dashboard. `verb` runs in a thread."""
    return _route(path, verb, method="GET")


def action(path: str, verb: Verb) -> Route:
    """Return the route of what a form or a button asks for. `verb` runs in a thread; the CSRF token was checked."""
    return _route(path, verb, method="POST")


def part(path: str, verb: Verb, *, kept_ms: int = KEPT_MS) -> Route:
    """Return the route of a part of a page that looks the same to everybody with equal rights in the project.

    It is made once in `kept_ms` for all who see it. `verb` runs in a thread, with a visit that knows no person and
    has no CSRF token. The rights of each request are checked all the same.
    """

    async def serve(request: Request) -> Response:
        request.scope["route"] = named
        made = _made_already(request)
        if made is None:
            read = partial(_read_part, request, verb, kept_ms)
            made = await anyio.to_thread.run_sync(read, limiter=request.app.state.page_threads)
        return _sent(request, made)

    named = Route(f"{ROOT}{path}", serve, methods=["GET"])
    return Route(path, serve, methods=["GET"])


def _made_already(request: Request) -> MadePart | None:
    """Return the part if it and its caller are remembered. Asks no database. Raises RateLimited."""
    ctx: Context = request.app.state.context
    caller = remembered_person(ctx, session_secret(request) or "", request.path_params.get("project_id"))
    found = None if caller is None else _parts_of(request).fresh(_key_of(request, caller))
    if caller is None or found is None or not counted_at_once(request.scope, ctx, caller):
        return None
    return found


def _read_part(request: Request, verb: Verb, kept_ms: int) -> MadePart:
    visit = visitor(request, knows_person=False)
    key = _key_of(request, visit.caller)
    return _parts_of(request).read(key, lambda: bytes(verb(visit).body), kept_ms=kept_ms)


def _sent(request: Request, made: MadePart) -> Response:
    headers = {"ETag": made.tag}
    if request.headers.get("if-none-match") == made.tag:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return HTMLResponse(made.body, headers=headers)


def _parts_of(request: Request) -> SharedParts:
    parts: SharedParts = request.app.state.shared_parts
    return parts


def _key_of(request: Request, caller: Caller) -> PartKey:
    return key_of(caller, f"{request.url.path}?{request.url.query}")


def see(url: str) -> Response:
    """Return the reply that leads the browser to another page, after an action too."""
    return RedirectResponse(url, HTTPStatus.SEE_OTHER)


def _route(path: str, verb: Verb, *, method: str) -> Route:
    async def serve(request: Request) -> Response:
        request.scope["route"] = named
        form = await read_form(request) if method == "POST" else SubmittedForm()
        answer = partial(_answered, request, form, verb)
        return await anyio.to_thread.run_sync(answer, limiter=request.app.state.page_threads)

    named = Route(f"{ROOT}{path}", serve, methods=[method])
    return Route(path, serve, methods=[method])


def _answered(request: Request, form: SubmittedForm, verb: Verb) -> Response:
    visit = visitor(request, form)
    if request.method in SAFE_METHODS:
        return verb(visit)
    try:
        return verb(visit)
    finally:
        _parts_of(request).forget(visit.project_id)


def visitor(request: Request, form: SubmittedForm = SubmittedForm(), *, knows_person: bool = True) -> Visit:
    """Return the request with the person behind it; of one that changes something the CSRF token is checked.
    The request counts against the limits of the project and of the session. Without `knows_person` the visit has
    neither the person's account and projects nor a CSRF token.

    Raises Unauthenticated, Forbidden, RateLimited.
    """
    ctx: Context = request.app.state.context
    secret = session_secret(request)
    if secret is None:
        raise Unauthenticated(REFUSAL)
    if request.method not in SAFE_METHODS:
        require_csrf(secret, form.get(CSRF_FIELD) or request.headers.get(CSRF_HEADER))
    caller = signed_in(ctx, secret, request.path_params.get("project_id"))
    count_in_thread(request.scope, ctx, caller)
    if not knows_person:
        return Visit(request=request, ctx=ctx, caller=caller, me=caller_alone(caller), csrf="")
    me = read_me(ctx, caller)
    if me.user is None:
        raise Unauthenticated(REFUSAL)
    return Visit(request=request, ctx=ctx, caller=caller, me=me, csrf=csrf_token(secret), form=form)


async def read_form(request: Request) -> SubmittedForm:
    """Return the fields of a form that came as `application/x-www-form-urlencoded`. Raises InvalidInput."""
    body = await request.body()
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError:
        raise InvalidInput([Fault(where="form", message="this is not a form that a page of ours sends")]) from None
    if "\0" in "".join(value for pair in pairs for value in pair):
        raise InvalidInput([Fault(where="form", message="a field holds a NUL character", hint="remove it")])
    return SubmittedForm(tuple(pairs))
