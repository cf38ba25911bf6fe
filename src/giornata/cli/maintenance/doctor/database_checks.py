"""Checks of the database: whether it answers, and what its rows tell."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from giornata.cli.maintenance.doctor.examined import ExaminedInstallation
from giornata.cli.maintenance.doctor.findings import DoctorFinding, Harm, NotChecked
from giornata.cli.ui.text import duration
from giornata.control.attempts.auditing.audit_results import OWN_CONDITIONS
from giornata.control.audit_log.chain import all_chained
from giornata.domain.accounts.audit_log import ChainCheck, ChainLink
from giornata.domain.errors import GiornataError, InvalidInput, Unavailable
from giornata.domain.jobs.audits import AuditState
from giornata.store.audit_log import AuditLog
from giornata.store.database.database import busy_is_unavailable
from giornata.store.database.dialects import VERSION_PREFIX, parse_url, postgres, sqlite_path, sqlite_reader
from giornata.store.database.migrate import is_current, knows_revision, revision_of
from giornata.store.database.sqlite_copy import check_sqlite
from giornata.store.database.transfer_marks import refuse_marked
from giornata.store.jobs.claiming import FOR_ANYONE
from giornata.store.outbox_gauges import outbox_gauges
from giornata.store.schema import audits, events, fleets, instances, jobs, nodes

MS_PER_S = 1000


def check_database(examined: ExaminedInstallation) -> Iterator[DoctorFinding]:
    """Find a database that does not answer, is damaged, or has another schema than this version's."""
    path = _sqlite_file(examined)
    if path is not None and not path.is_file():
        fix = "name the data folder with --data, or start an installation with giornata up"
        yield _database(Harm.STOPPED, f"there is no database {path}", fix)
        return
    try:
        if path is not None:
            check_sqlite(path)
    except Unavailable as error:
        yield _database(Harm.LOSS, str(error), "stop the server, keep the file, and restore a backup")
        return
    try:
        with _reading(examined) as connection:
            refuse_marked(connection)
            yield from _revision_findings(connection)
    except InvalidInput as error:
        (fault,) = error.faults
        yield _database(Harm.STOPPED, fault.message, fault.hint)
    except Unavailable as error:
        yield _database(Harm.STOPPED, str(error), "start the database, or check the setting database")


def _revision_findings(connection: sa.Connection) -> Iterator[DoctorFinding]:
    if is_current(connection):
        return
    found = revision_of(connection)
    if found is None:
        yield _database(Harm.STOPPED, "the database has no tables of Giornata", "check the setting database")
    elif knows_revision(found):
        yield _database(Harm.STOPPED, f"the database has the older revision {found}", "start the servers anew")
    else:
        fix = "install the version of the servers here and on every replica"
        yield _database(Harm.STOPPED, f"the database has the unknown revision {found}, of a newer version", fix)


def check_database_clock(examined: ExaminedInstallation) -> Iterator[DoctorFinding]:
    """Find rows of the future, and a PostgreSQL server whose clock is another than this machine's."""
    with _current(examined) as connection:
        latest_ms = max(
            connection.scalar(sa.select(sa.func.max(nodes.c.last_seen_at_ms))) or 0,
            connection.scalar(sa.select(events.c.at_ms).order_by(events.c.id.desc()).limit(1)) or 0,
        )
        is_postgres = connection.dialect.name == "postgresql"
        theirs_ms = connection.scalar(sa.text(_POSTGRES_NOW)) if is_postgres else None
    now_ms, limit_s = examined.clock.now_ms(), examined.limits.skew_s
    fix = "set the clocks of all servers by NTP; leases and signed URLs are judged by them"
    if (ahead_s := (latest_ms - now_ms) / MS_PER_S) > limit_s:
        message = f"the database has rows from {duration(ahead_s)} in the future: a clock was set back"
        yield DoctorFinding(check="clock", harm=Harm.LOSS, message=message, fix=fix)
    if theirs_ms is not None and abs(skew_s := (theirs_ms - now_ms) / MS_PER_S) > limit_s:
        message = f"the clock of PostgreSQL is {duration(abs(skew_s))} {'ahead' if skew_s > 0 else 'behind'}"
        yield DoctorFinding(check="clock", harm=Harm.LOSS, message=message, fix=fix)


def check_versions(examined: ExaminedInstallation) -> Iterator[DoctorFinding]:
    """Find servers of several versions on one PostgreSQL, by the names of their connections."""
    if _sqlite_file(examined) is not None:
        raise NotChecked("SQLite has one server")
    with _current(examined) as connection:
        names = connection.scalars(sa.text(_CONNECTIONS), {"named": f"{VERSION_PREFIX}%"}).all()
    servers: dict[str, set[str]] = defaultdict(set)
    for name in names:
        version, _, server = name.removeprefix(VERSION_PREFIX).partition(" ")
        servers[version].add(server)
    if len(servers) > 1:
        listed = "; ".join(f"{version} on {', '.join(sorted(at))}" for version, at in sorted(servers.items()))
        message = f"servers differ in version: {listed}"
        fix = "end the upgrade: replace the servers of the older version"
        yield DoctorFinding(check="versions", harm=Harm.DEGRADED, message=message, fix=fix)


def check_fleets(examined: ExaminedInstallation) -> Iterator[DoctorFinding]:
    """Find fleets that get nobody, and jobs that wait where no node asks for work."""
    now_ms, limits = examined.clock.now_ms(), examined.limits
    since_ms = now_ms - round(limits.nobody_for_s * MS_PER_S)
    with _current(examined) as connection:
        there = sa.exists().where(
            instances.c.fleet == fleets.c.name,
            instances.c.gone_at_ms.is_(None),
            instances.c.running_at_ms.is_not(None),
        )
        wanted = (fleets.c.desired > 0) & fleets.c.paused_at_ms.is_(None)
        alone = connection.execute(sa.select(fleets).where(wanted, ~there)).all()
        heard = connection.scalar(sa.select(sa.func.max(nodes.c.last_seen_at_ms)).where(nodes.c.start == "")) or 0
        oldest = connection.scalar(sa.select(sa.func.min(jobs.c.created_at_ms)).where(FOR_ANYONE))
    for row in alone:
        why = row.trouble or row.unlisted or row.shortage
        if not why and max(row.changed_at_ms or 0, row.awaited_at_ms or 0) > since_ms:
            continue  # it was asked a moment ago
        message = (
            f"fleet {row.name} gets nobody: {row.desired} nodes wanted, none runs; {why or 'no reason is known'}"
        )
        yield _fleets(message, f"giornata fleets show {row.name}; check the provider's key, quota and offers")
    if oldest is not None and oldest < since_ms and heard < since_ms:
        message = f"jobs have waited for {duration((now_ms - oldest) / MS_PER_S)}, and no node asks for work"
        yield _fleets(message, "start a node: giornata key create --scope node, then giornata node --join")


def check_replay_audits(examined: ExaminedInstallation) -> Iterator[DoctorFinding]:
    """Find machines whose stretches nobody could repeat by their own word, and of which none was confirmed."""
    limits = examined.limits
    since_ms = examined.clock.now_ms() - round(limits.audits_of_s * MS_PER_S)
    excused = (audits.c.state == AuditState.NOT_AUDITED) & audits.c.message.in_(OWN_CONDITIONS)
    times, sound = _counted(excused), _counted(audits.c.state == AuditState.CONFIRMED)
    query = (
        sa.select(audits.c.machine_id, times)
        .where(audits.c.decided_at_ms >= since_ms)
        .group_by(audits.c.machine_id)
        .having((times >= limits.excused_audits) & (sound == 0))
        .order_by(times.desc(), audits.c.machine_id)
    )
    with _current(examined) as connection:
        found = connection.execute(query).all()
    for machine_id, count in found:
        message = (
            f"{count} audits of {machine_id} ended as not_audited because of its own conditions, and none was sound"
        )
        fix = (
            "compare its threads, device and versions with others of its fleet; "
            f"if they are equal, giornata machines quarantine {machine_id}"
        )
        yield DoctorFinding(check="replay-audits", harm=Harm.DEGRADED, message=message, fix=fix)


def _counted(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.sum(sa.case((condition, 1), else_=0))


def check_audit_log(examined: ExaminedInstallation) -> Iterator[DoctorFinding]:
    """Find rows of the audit log that were changed, deleted, added or moved, and rows that no loop chains."""
    with _current(examined) as connection:
        log = AuditLog(connection, connection.dialect.name)
        check = ChainCheck()
        heads = log.heads()
        for project_id in sorted({*heads, *log.chained_projects()}):
            for row in all_chained(log, project_id):
                check.add(row)
            check.end(project_id, heads.get(project_id, ChainLink()))
        oldest = log.unchained(limit=1)
    for fault in check.first_faults():
        message = f"the audit log of {fault.project_id}: the chain is broken at row {fault.number}: {fault.why}"
        fix = "compare it with an export or a backup from before: somebody wrote to the database past the server"
        yield DoctorFinding(check="audit-log", harm=Harm.LOSS, message=message, fix=fix)
    late_s = (examined.clock.now_ms() - oldest[0].at_ms) / MS_PER_S if oldest else 0.0
    if late_s > examined.limits.unchained_s:
        message = f"rows of the audit log have waited for {duration(late_s)} to be chained"
        fix = "start a server; look for 'loop audit-log failed' in its log"
        yield DoctorFinding(check="audit-log", harm=Harm.DEGRADED, message=message, fix=fix)


def check_outbox(examined: ExaminedInstallation) -> Iterator[DoctorFinding]:
    """Find events that no loop turns into deliveries of webhooks, and due deliveries that no loop sends."""
    with _current(examined) as connection:
        waiting = outbox_gauges(connection)
    now_ms, fix = examined.clock.now_ms(), "start a server; look for 'loop {} failed' in its log"
    for what, loop, since_ms in (
        ("events", "fan-out", waiting.oldest_event_at_ms),
        ("due deliveries", "webhooks", waiting.oldest_due_at_ms),
    ):
        late_s = 0.0 if since_ms is None else (now_ms - since_ms) / MS_PER_S
        if late_s > examined.limits.outbox_s:
            message = f"{what} of webhooks have waited for {duration(late_s)}"
            yield DoctorFinding(check="outbox", harm=Harm.DEGRADED, message=message, fix=fix.format(loop))


@contextmanager
def _current(examined: ExaminedInstallation) -> Iterator[sa.Connection]:
    """Read the database. Raises NotChecked where `check_database` has said already what is wrong."""
    path = _sqlite_file(examined)
    if path is not None and not path.is_file():
        raise NotChecked("there is no database")
    try:
        with _reading(examined) as connection:
            if not is_current(connection):
                raise NotChecked("the database has another schema")
            yield connection
    except GiornataError as error:
        raise NotChecked(f"the database cannot be read: {error}") from error


@contextmanager
def _reading(examined: ExaminedInstallation) -> Iterator[sa.Connection]:
    """Open one connection, beside the server that may run."""
    parsed = parse_url(examined.database)
    is_sqlite = parsed.get_backend_name() == "sqlite"
    engine = sqlite_reader(parsed) if is_sqlite else postgres(parsed, pool_size=1)
    try:
        with busy_is_unavailable(), engine.connect() as connection:
            # One snapshot, as SQLite gives it anyway: rows and what is noted of them belong together.
            yield connection if is_sqlite else connection.execution_options(isolation_level="REPEATABLE READ")
    finally:
        engine.dispose()


def _sqlite_file(examined: ExaminedInstallation) -> Path | None:
    parsed = parse_url(examined.database)
    return sqlite_path(parsed) if parsed.get_backend_name() == "sqlite" else None


def _database(harm: Harm, message: str, fix: str) -> DoctorFinding:
    return DoctorFinding(check="database", harm=harm, message=message, fix=fix)


def _fleets(message: str, fix: str) -> DoctorFinding:
    return DoctorFinding(check="fleets", harm=Harm.STOPPED, message=message, fix=fix)


_POSTGRES_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_CONNECTIONS = """
SELECT DISTINCT application_name FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE :named
"""
