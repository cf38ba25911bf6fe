"""The checks of `giornata doctor` that look at a real PostgreSQL."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from tests.fixtures.contexts import CountedIds, ManualClock
from tests.fixtures.databases import opened
from tests.fixtures.diagnosis import Examine, ShiftedWallClock, examined_at, findings_of

from giornata import __version__
from giornata.cli.maintenance.doctor.findings import Harm
from giornata.client.trust import trusted
from giornata.control.audit_log.chain import chain_rows
from giornata.control.audit_log.record import SYSTEM, audit_row
from giornata.control.context import Foundations
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.store.database.dialects import connection_name, parse_url, postgres
from giornata.store.schema import audit_log


@pytest.fixture
def look(new_postgres: Callable[[], str], tmp_path: Path) -> Iterator[Examine]:
    url = new_postgres()
    with httpx.Client(verify=trusted()) as http:
        yield lambda **fields: examined_at(tmp_path, http, **{"database": url, **fields})


def test_servers_of_two_versions_are_found_while_both_are_connected(
    look: Examine,
) -> None:
    url = look().database
    engine = postgres(parse_url(url), pool_size=1)
    with opened(url) as store, store.read() as tx, engine.connect() as other:
        tx.connection.execute(sa.text("SELECT 1"))
        assert findings_of(look(), "versions") == []
        other.execute(sa.select(sa.func.set_config("application_name", connection_name("0.1.9"), False)))
        (found,) = findings_of(look(), "versions")
    engine.dispose()
    assert found.harm is Harm.DEGRADED
    assert "0.1.9 on " in found.message
    assert f"{__version__} on " in found.message


def test_another_clock_than_that_of_postgresql_is_found(look: Examine) -> None:
    assert findings_of(look(), "clock") == []
    (found,) = findings_of(look(clock=ShiftedWallClock(60.0)), "clock")
    assert "the clock of PostgreSQL is 60" in found.message or "the clock of PostgreSQL is 1:00" in found.message
    assert "behind" in found.message


def test_a_server_that_does_not_answer_is_found(look: Examine) -> None:
    (found,) = findings_of(look(database="postgresql://nobody@127.0.0.1:1/nothing"), "database")
    assert found.harm is Harm.STOPPED
    assert "the database cannot do it just now" in found.message


def test_a_database_of_something_else_is_found(look: Examine, empty_postgres: Callable[[], str]) -> None:
    (found,) = findings_of(look(database=empty_postgres()), "database")
    assert found.message == "the database has no tables of Giornata"


def test_a_changed_row_of_the_audit_log_is_found(look: Examine) -> None:
    with opened(look().database) as store:
        with store.begin() as tx:
            rows = [audit_row(SYSTEM, AuditVerb.KEY_CREATE, f"key_{n}", at_ms=n, project_id="p") for n in range(3)]
            tx.audit_log.add_each(rows)
        chain_rows(Foundations(store=store, clock=ManualClock(), names=CountedIds()))
        assert findings_of(look(), "audit-log") == []
        with store.begin() as tx:
            tx.connection.execute(sa.update(audit_log).where(audit_log.c.number == 2).values(target="key_9"))
    (found,) = findings_of(look(), "audit-log")
    assert "broken at row 2" in found.message
