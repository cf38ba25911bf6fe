"""Move an installation from SQLite to PostgreSQL. A move that was killed is repeated, and goes on where it was.

1. The source is marked, so that no server starts on it and writes.
2. Tables are copied by batches, each with a cursor in the target.
3. Sequences continue behind the highest ids, and all rows are compared, by their numbers and by hashes.
4. The source is marked as moved, and the target's marks go: servers may start on the target.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Engine

from giornata.domain.errors import Fault, InvalidInput
from giornata.store.database.database import busy_is_unavailable
from giornata.store.database.dialects import parse_url, postgres, sqlite_path, sqlite_writer
from giornata.store.database.migrate import is_current, migrate
from giornata.store.database.sqlite_file import ProcessLock
from giornata.store.database.transfer_marks import SOURCE, STATE, TARGET, TransferState, marks, read_marks
from giornata.store.schema import installation, webhook_cursor
from giornata.store.transfer.copy_tables import TABLES, OnBatch, copy_tables, plain

FETCHED_ROWS = 1000
ALEMBIC_TABLE = "alembic_version"
MADE_BY_MIGRATIONS = (webhook_cursor,)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveReport:
    """The result of a move. `copied_rows` counts those of this call; a move that had ended before copies none."""

    target: str
    copied_rows: int


def move_store(source_url: str, target_url: str, *, on_batch: OnBatch = lambda _: None) -> MoveReport:
    """Move all rows from the SQLite file to the PostgreSQL database, and compare them.

    Raises InvalidInput for URLs of other databases, for a source without an installation, for a target that holds
    something else, and when the rows differ at the end. Raises Unavailable when a server runs on the source.
    """
    source_at, target_at = _parsed(source_url, "SOURCE", "sqlite"), _parsed(target_url, "TARGET", "postgresql")
    label = f"{target_at.host or 'localhost'}/{target_at.database}"
    copied_rows = 0
    with _opened(source_at, target_at) as (source, target):
        identity = _identity(source)
        if _state(source, label) is not TransferState.MOVED:
            _prepare_target(target, target_url, identity=identity)
            _mark_source(source, TransferState.MOVING, label)
            copied_rows = _move_rows(source, target, on_batch)
            _mark_source(source, TransferState.MOVED, label)
        _release_target(target, identity=identity)
    return MoveReport(target=label, copied_rows=copied_rows)


def abandon_move(source_url: str) -> bool:
    """Let servers start on the source again; return True when a move had marked it. The target stays as it is.

    Raises InvalidInput for a URL of another database, and Unavailable when a server runs on the source.
    """
    parsed = _parsed(source_url, "SOURCE", "sqlite")
    with (
        _locked(parsed),
        _engine(sqlite_writer(parsed)) as source,
        busy_is_unavailable(),
        source.begin() as connection,
    ):
        was_marked = read_marks(connection) is not None
        marks.drop(connection, checkfirst=True)
        return was_marked


@contextmanager
def _opened(source_at: URL, target_at: URL) -> Iterator[tuple[Engine, Engine]]:
    """Open both databases. No server starts on the source meanwhile."""
    with (
        _locked(source_at),
        _engine(sqlite_writer(source_at)) as source,
        _engine(postgres(target_at)) as target,
        busy_is_unavailable(),
    ):
        yield source, target


@contextmanager
def _engine(engine: Engine) -> Iterator[Engine]:
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def _locked(source_at: URL) -> Iterator[None]:
    path = sqlite_path(source_at)
    if not path.is_file():
        raise InvalidInput([Fault(where="SOURCE", message=f"there is no database {path}", hint="sqlite:////FILE")])
    lock = ProcessLock(path)
    try:
        yield
    finally:
        lock.release()


def _state(source: Engine, label: str) -> TransferState | None:
    """Return how far the move of the source is. Raises InvalidInput for a move to another database."""
    with source.begin() as connection:
        found = read_marks(connection)
    if found is not None and found[TARGET] != label:
        hint = "name that target, or give that move up with --abandon"
        raise InvalidInput([Fault(where="SOURCE", message=f"is moved to {found[TARGET]} already", hint=hint)])
    return None if found is None else TransferState(found[STATE])


def _identity(source: Engine) -> str:
    """Return what tells this installation from all others.

    Raises InvalidInput for a database of another schema, and for one without an installation.
    """
    with source.begin() as connection:
        if not is_current(connection):
            hint = "start this version of Giornata on it once, which upgrades the database, and stop it again"
            raise InvalidInput([Fault(where="SOURCE", message="its schema is not this version's", hint=hint)])
        row = connection.execute(sa.select(installation)).one_or_none()
    if row is None:
        hint = "name the database of an installation that has been started once"
        raise InvalidInput([Fault(where="SOURCE", message="holds no installation", hint=hint)])
    return hashlib.sha256(repr(tuple(row)).encode()).hexdigest()


def _prepare_target(target: Engine, target_url: str, *, identity: str) -> None:
    """Make the tables, and mark them as this source's. Raises InvalidInput for a target that holds something else."""
    with target.connect() as connection:
        found = read_marks(connection)
        strange = set(sa.inspect(connection).get_table_names()) - _known_tables()
    if found is not None:
        if found.get(SOURCE) != identity:
            raise _target_refused("another installation is being moved into it, or the source has another key now")
        return
    if strange:
        raise _target_refused(f"it has tables of something else: {', '.join(sorted(strange))}")
    migrate(target_url)
    with target.begin() as connection:
        own = [table for table in TABLES if table not in MADE_BY_MIGRATIONS]
        full = [table.name for table in own if connection.execute(sa.select(table).limit(1)).first() is not None]
        if full:
            raise _target_refused(f"it holds an installation: there are rows in {', '.join(full)}")
        for table in MADE_BY_MIGRATIONS:  # the source's rows come in their place
            connection.execute(sa.delete(table))
        marks.create(connection)
        connection.execute(sa.insert(marks).values(name=SOURCE, said=identity))


def _move_rows(source: Engine, target: Engine, on_batch: OnBatch) -> int:
    """Copy and compare all rows. Raises InvalidInput when they differ."""
    with source.begin() as reading:
        copied_rows = copy_tables(reading, target, on_batch=on_batch)
        with target.begin() as connection:
            for table in TABLES:
                _continue_sequence(connection, table)
        with target.connect() as connection:
            faults = list(differences(reading, connection))
    if faults:
        raise InvalidInput(faults)
    return copied_rows


def _continue_sequence(connection: sa.Connection, table: sa.Table) -> None:
    column = table.autoincrement_column
    if column is None:
        return
    highest = connection.scalar(sa.select(sa.func.max(column)))
    if highest is not None:
        # Where no sequence stands behind the column, its name is NULL, and nothing is set.
        sequence = sa.func.pg_get_serial_sequence(table.name, column.name)
        connection.execute(sa.select(sa.func.setval(sequence, highest)))


def _mark_source(source: Engine, state: TransferState, label: str) -> None:
    with source.begin() as connection:
        marks.create(connection, checkfirst=True)
        connection.execute(sa.delete(marks))
        connection.execute(sa.insert(marks), [{"name": STATE, "said": state}, {"name": TARGET, "said": label}])


def _release_target(target: Engine, *, identity: str) -> None:
    """Let servers start on the target."""
    with target.begin() as connection:
        found = read_marks(connection)
        if found is None or found.get(SOURCE) != identity:
            return
        marks.drop(connection)
    with target.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        # The planner knows nothing yet of the new rows, and claims are held to its plans.
        connection.execute(sa.text("ANALYZE"))


def _known_tables() -> set[str]:
    return {ALEMBIC_TABLE, *(table.name for table in TABLES)}


def _parsed(url: str, where: str, dialect: str) -> URL:
    parsed = parse_url(url)
    if parsed.get_backend_name() != dialect:
        hint = "giornata migrate-store sqlite:////FILE postgresql://HOST/NAME"
        raise InvalidInput([Fault(where=where, message=f"is not {dialect}:…", hint=hint)])
    return parsed


def _target_refused(message: str) -> InvalidInput:
    return InvalidInput([Fault(where="TARGET", message=message, hint="name an empty database")])


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDigest:
    """The content of a table. `sha256_sum` is the sum of the hashes of its rows, in any order, modulo 2^256."""

    rows: int
    sha256_sum: int


def differences(source: sa.Connection, target: sa.Connection) -> Iterator[Fault]:
    """Yield a fault for each table whose rows are not the same on both sides."""
    for table in TABLES:
        expected, found = digest_of(source, table), digest_of(target, table)
        if found != expected:
            message = f"has {found.rows} rows in the target and {expected.rows} in the source, or other values"
            hint = "empty the target and begin anew"
            yield Fault(where=f"table {table.name}", message=message, hint=hint)


def digest_of(connection: sa.Connection, table: sa.Table) -> TableDigest:
    """Return the digest of a table, equal on both dialects for equal rows."""
    rows, total = 0, 0
    streaming = connection.execution_options(yield_per=FETCHED_ROWS)
    json_places = frozenset(place for place, each in enumerate(table.columns) if isinstance(each.type, sa.JSON))
    for row in streaming.execute(sa.select(*map(plain, table.columns))):
        values = [_json_value(value) if place in json_places else value for place, value in enumerate(row)]
        line = json.dumps(values, sort_keys=True).encode()
        rows, total = rows + 1, (total + int.from_bytes(hashlib.sha256(line).digest())) % 2**256
    return TableDigest(rows=rows, sha256_sum=total)


def _json_value(text: str | None) -> Any:
    """Return the value of JSON in a list, and nothing for NULL, which is not the JSON null."""
    return None if text is None else [json.loads(text)]
