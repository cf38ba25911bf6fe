"""Servers on one PostgreSQL let one limit of requests a second through together."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from tests.fixtures.contexts import CountedIds, FinePictures, ManualClock, PlainPasswords
from tests.fixtures.databases import opened

from giornata.api.app import create_app
from giornata.api.server import HttpServer, listen
from giornata.api.settings import ApiSettings
from giornata.blobs.filesystem import FilesystemBlobs
from giornata.client.trust import trusted
from giornata.control.access.authenticate import authenticate
from giornata.control.access.install import install
from giornata.control.access.keys import create_key
from giornata.control.context import Context
from giornata.control.loops import REQUEST_COUNTS_LOOP, Loops
from giornata.control.projects.set_quotas import set_quotas
from giornata.control.quotas.request_limits import exchange_counts, take_request
from giornata.domain.billing.quotas import Quotas
from giornata.protocol.project.admin import CreateKey, Scope
from giornata.protocol.project.quotas import SetQuotas
from giornata.store.database.database import Database
from giornata.store.schema import request_counts

RATE = 5
EXCHANGE_S = 1.0
OK, TOO_MANY = 200, 429


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedServer:
    """A server process of the installation: an app with memory of its own, on the database of all."""

    ctx: Context
    store: Database
    loops: Loops
    http: httpx.Client

    def exchange(self) -> bool:
        """A turn of the loop."""
        return self.loops.run_once(REQUEST_COUNTS_LOOP)

    def passed(self, key: str, *, most: int) -> int:
        """The requests that are let through before one is refused, or all of so many."""
        for number in range(most):
            reply = self.http.get("/v1/jobs", headers={"Authorization": f"Bearer {key}"})
            if reply.status_code == TOO_MANY:
                assert int(reply.headers["retry-after"]) >= 1
                return number
            assert reply.status_code == OK, reply.text
        return most


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedServers:
    """Two replicas, the clock that both read, and a way to count what they ask of the database."""

    replicas: tuple[LimitedServer, LimitedServer]
    clock: ManualClock
    admin: str

    def key(self) -> str:
        """The secret of a new key of the project."""
        (first, _) = self.replicas
        return create_key(first.ctx, authenticate(first.ctx, self.admin), CreateKey(scope=Scope.MEMBER)).secret

    def limit(self, **limits: int | None) -> None:
        """Set limits of the project, known to both at once."""
        for each in self.replicas:
            set_quotas(each.ctx, authenticate(each.ctx, self.admin), "default", SetQuotas.model_validate(limits))

    def rows(self) -> list[str]:
        """The servers of which the table has counts."""
        with self.replicas[0].store.read() as tx:
            return sorted(tx.connection.scalars(sa.select(request_counts.c.server_id)))


@pytest.fixture
def installation(new_postgres: Callable[[], str], tmp_path: Path) -> Iterator[LimitedServers]:
    url, clock = new_postgres(), ManualClock()
    with ExitStack() as stack:
        replicas = tuple(_replica(stack, url, clock, tmp_path, first_id=1 + 1000 * number) for number in range(2))
        admin = install(replicas[0].ctx)
        assert admin is not None
        yield LimitedServers(replicas=(replicas[0], replicas[1]), clock=clock, admin=admin)


def _replica(stack: ExitStack, database: str, clock: ManualClock, folder: Path, *, first_id: int) -> LimitedServer:
    store = stack.enter_context(opened(database))
    blobs = FilesystemBlobs(folder / "blobs", signing_key=b"k" * 32, base_url="http://x.invalid", clock=clock)
    ctx = Context(
        store=store,
        blobs=blobs,
        clock=clock,
        names=CountedIds(first_id),
        pictures=FinePictures(),
        passwords=PlainPasswords(),
    )
    sock = listen("127.0.0.1", 0)
    loops = Loops(ctx, [REQUEST_COUNTS_LOOP])
    server = HttpServer(create_app(ctx, settings=ApiSettings(), loops_status=loops.status), sock, grace_s=5)
    server.start()
    stack.callback(server.stop)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    http = stack.enter_context(httpx.Client(base_url=url, verify=trusted()))
    return LimitedServer(ctx=ctx, store=store, loops=loops, http=http)


def sent_for(installation: LimitedServers, seconds: int, key: str, *, exchanging: bool = True) -> int:
    """The requests of a client that sends as many as it may, to both servers in turn, for so many seconds."""
    passed = 0
    for quarter in range(4 * seconds):
        for replica in installation.replicas:
            passed += replica.passed(key, most=2 * RATE)
        installation.clock.advance_s(EXCHANGE_S / 4)
        # They do not exchange at the same instant.
        if exchanging and quarter % 4 in {1, 3}:
            assert installation.replicas[quarter % 4 // 2].exchange()
    return passed


@pytest.mark.parametrize("limit", ["max_requests_per_s", "max_requests_per_s_per_key"])
def test_two_servers_let_one_limit_through_and_a_burst_of_known_size(
    installation: LimitedServers, limit: str
) -> None:
    key, seconds = installation.key(), 12
    installation.limit(**{limit: RATE})
    passed = sent_for(installation, seconds, key)
    burst = 2 * RATE * (1 + 2 * EXCHANGE_S)
    assert RATE * seconds <= passed <= RATE * seconds + burst < 2 * RATE * seconds
    # And from then on the limit itself: the burst is paid back.
    assert sent_for(installation, seconds, key) <= RATE * seconds + RATE


def test_two_servers_that_exchange_nothing_let_twice_the_limit_through(installation: LimitedServers) -> None:
    key, seconds = installation.key(), 3
    installation.limit(max_requests_per_s=RATE)
    assert sent_for(installation, seconds, key, exchanging=False) >= 2 * RATE * seconds


def test_keys_have_limits_of_their_own_on_all_servers(installation: LimitedServers) -> None:
    first, second = installation.replicas
    one, other = installation.key(), installation.key()
    installation.limit(max_requests_per_s_per_key=RATE)
    assert first.passed(one, most=2 * RATE) == RATE
    assert second.passed(other, most=1) == 1
    assert (first.exchange(), second.exchange()) == (True, True)
    assert second.passed(one, most=2 * RATE) == 0, "it was spent on the other server"
    assert second.passed(other, most=RATE - 1) == RATE - 1


def test_server_that_vanishes_counts_no_more_and_its_row_is_deleted(installation: LimitedServers) -> None:
    first, _ = installation.replicas
    key = installation.key()
    installation.limit(max_requests_per_s=RATE)
    for _ in range(2):
        for replica in installation.replicas:
            replica.passed(key, most=1)
            replica.exchange()
    assert len(installation.rows()) == 2
    for _ in range(10):
        installation.clock.advance_s(EXCHANGE_S)
        first.exchange()
    assert first.passed(key, most=4 * RATE) == RATE
    installation.clock.advance_s(EXCHANGE_S)
    assert first.passed(key, most=4 * RATE) == RATE, "no share is kept for the other"
    installation.clock.advance_s(55)
    first.exchange()
    assert installation.rows() == [first.ctx.request_rates.server_id]


def test_server_whose_projects_are_quiet_deletes_its_row_and_asks_the_database_nothing(
    installation: LimitedServers, statements: list[str]
) -> None:
    first, second = installation.replicas
    key = installation.key()
    asked = statements_of(statements, first)
    assert asked() == 0, "nobody has a limit"
    installation.limit(max_requests_per_s=RATE)
    first.passed(key, most=1)
    second.passed(key, most=1)
    assert asked() == 1
    assert asked() == 1
    installation.clock.advance_s(60)
    assert asked() == 1
    assert installation.rows() == []
    assert asked() == 0


def statements_of(statements: list[str], replica: LimitedServer) -> Callable[[], int]:
    """Counts the statements of a turn of the replica's loop."""

    def turn() -> int:
        statements.clear()
        assert replica.exchange()
        return len(statements)

    return turn


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """Each statement that any connection is asked to run."""
    found: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        found.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    yield found
    sa.event.remove(sa.Engine, "before_cursor_execute", note)


def test_slow_exchange_holds_up_no_request_and_refuses_none(installation: LimitedServers) -> None:
    first, second = installation.replicas
    key = installation.key()
    installation.limit(max_requests_per_s=RATE)
    assert [replica.passed(key, most=1) for replica in installation.replicas] == [1, 1]
    assert first.exchange()
    turn = threading.Thread(target=first.exchange)
    with second.store.begin() as held:
        held.connection.execute(sa.text("LOCK TABLE request_counts IN ACCESS EXCLUSIVE MODE"))
        turn.start()
        until(lambda: waits(held.connection))
        assert first.passed(key, most=2 * RATE) == RATE - 1
        for _ in range(10):
            installation.clock.advance_s(EXCHANGE_S)
            assert first.passed(key, most=2 * RATE) == RATE, "it has the whole rate while it knows of nobody"
    turn.join()
    installation.clock.advance_s(EXCHANGE_S)
    assert first.passed(key, most=1) == 1


def waits(connection: sa.Connection) -> bool:
    """Whether somebody waits for the lock of a table."""
    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'")
    return bool(connection.scalar(waiting))


def until(holds: Callable[[], bool]) -> None:
    while not holds():
        pass


def test_exchange_that_fails_refuses_no_request_and_is_tried_again(installation: LimitedServers) -> None:
    first, _ = installation.replicas
    key = installation.key()
    installation.limit(max_requests_per_s=RATE)
    first.passed(key, most=1)
    with first.store.begin() as tx:
        tx.connection.execute(sa.text("ALTER TABLE request_counts RENAME TO moved_counts"))
    try:
        assert not first.exchange()
        assert first.passed(key, most=2 * RATE) == RATE - 1
        (shown,) = first.loops.status()
        assert (shown.name, shown.vital, shown.errors_in_a_row) == ("request-counts", False, 1)
    finally:
        with first.store.begin() as tx:
            tx.connection.execute(sa.text("ALTER TABLE moved_counts RENAME TO request_counts"))
    assert first.exchange()


def test_old_row_that_its_server_still_writes_is_neither_waited_for_nor_deleted(installation: LimitedServers) -> None:
    first, second = installation.replicas
    caller, quotas = authenticate(first.ctx, installation.admin), Quotas(max_requests_per_s=RATE)
    for replica in installation.replicas:
        assert take_request(replica.ctx, caller, quotas) is not None
        exchange_counts(replica.ctx)
    installation.clock.advance_s(59)
    assert second.exchange()
    installation.clock.advance_s(2)
    take_request(second.ctx, caller, quotas)
    now_ms, rates = installation.clock.now_ms(), first.ctx.request_rates
    with first.store.begin() as tx:
        tx.quotas.exchange_requests(rates.server_id, {}, at_ms=now_ms)
        assert second.exchange()
    assert len(installation.rows()) == 2
    installation.clock.advance_s(61)
    take_request(second.ctx, caller, quotas)
    assert second.exchange()
    assert installation.rows() == [second.ctx.request_rates.server_id]
