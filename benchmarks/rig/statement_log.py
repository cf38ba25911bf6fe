"""Statements that a PostgreSQL server of our own was sent, counted in its log."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from benchmarks.rig.databases import PostgresOnSocket, engine_of

TAKES_EFFECT_S = 0.5
_SENT = re.compile(rb"^.*?LOG:  (?:statement|execute [^:]*): (\w+)", re.MULTILINE)
_OF_TRANSACTIONS = frozenset({b"BEGIN", b"COMMIT", b"ROLLBACK"})
_OURS = b"ALTER"  # the statement that turns the log off


@dataclass(slots=True)
class ServerStatements:
    """What the whole server was sent, by all of its clients; there when the count has ended."""

    statements: int = 0
    transactions: int = 0


@contextmanager
def statements_sent(own: PostgresOnSocket) -> Iterator[ServerStatements]:
    """Count while this lasts. Statements take longer meanwhile: each is written to the log of the server."""
    sent = ServerStatements()
    engine = engine_of(own.url, autocommit=True)
    with engine.connect() as connection:
        log = Path(str(connection.exec_driver_sql("SHOW data_directory").scalar())) / "log"
        _set(connection, "SET log_statement = 'all'")
        before_bytes = log.stat().st_size
        yield sent
        _set(connection, "RESET log_statement")
        with log.open("rb") as file:
            file.seek(before_bytes)
            verbs = [verb for verb in _SENT.findall(file.read()) if verb != _OURS]
    sent.transactions = verbs.count(b"BEGIN")
    sent.statements = sum(verb not in _OF_TRANSACTIONS for verb in verbs)
    engine.dispose()


def _set(connection: sa.Connection, change: str) -> None:
    connection.exec_driver_sql(f"ALTER SYSTEM {change}")
    connection.exec_driver_sql("SELECT pg_reload_conf()")
    time.sleep(TAKES_EFFECT_S)
