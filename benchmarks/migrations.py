"""How long claims wait while migrations run: `python -m benchmarks.migrations`.

A PostgreSQL of our own has the schema of an older revision, with a million rows in each table that grows. Threads do
what a claim does to its tables, one transaction after the other: they lock and change a job, and insert an attempt
and an event. They roll back, so that each finds the same. Beside them every later migration runs, as a server that
starts runs it. A wait counts for the migration that was under way when it ended.

Prints a table, then one JSON line. Mark: no transaction takes longer than a second. A migration waits 0.3 s at most
for a lock, and holds up those behind it so long; a catalog change follows.
"""

import argparse
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field

import sqlalchemy as sa
from alembic import command

from benchmarks.rig.databases import engine_of, postgres
from benchmarks.rig.figures import conclude, latencies_ms, machine
from benchmarks.rig.filled_tables import FIRST, GROWING, config_on, fill_revision, insert_rows
from giornata.store.database.dialects import parse_url
from giornata.store.database.migrate import migrate

MARK_S = 1.0
CLAIMERS = 4
BEFORE_S = 5.0
INSERTED = ("attempts", "events")
BEYOND = 10**8
"""Numbers of rows that claims insert begin here."""


@dataclass(slots=True)
class Claims:
    """Transactions that lock what a claim locks, and how long each took, by the revision when it ended."""

    url: str
    rows: int
    pause_s: float
    took_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self, number: int) -> None:
        """Claim until it is over."""
        engine = engine_of(self.url)
        known = sa.MetaData()
        with engine.connect() as connection:
            known.reflect(connection, only=INSERTED)
            connection.rollback()
            turn = 0
            while not self.over.is_set():
                turn += 1
                began_s = time.perf_counter()
                try:
                    self._claim(connection, known, job=(turn * CLAIMERS + number) % self.rows + 1)
                    took_s = time.perf_counter() - began_s
                    revision = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
                    self.took_s[str(revision)].append(took_s)
                except sa.exc.SQLAlchemyError as error:
                    self.failures.append(str(error))
                connection.rollback()
                time.sleep(self.pause_s)
        engine.dispose()

    def _claim(self, connection: sa.Connection, known: sa.MetaData, *, job: int) -> None:
        one = {"job": str(job)}
        connection.execute(sa.text("SELECT id FROM jobs WHERE id = :job FOR UPDATE SKIP LOCKED"), one)
        connection.execute(sa.text("UPDATE jobs SET state = 'running', step = step + 1 WHERE id = :job"), one)
        for table in (known.tables[name] for name in INSERTED):
            insert_rows(connection, table, 1, first=BEYOND + job, fixed={"job_id": str(job), "project_id": "1"})
        connection.rollback()


def measured(claims: Claims) -> dict[str, float]:
    """Run the migrations beside claims; the seconds of both parts."""
    threads = [threading.Thread(target=claims.run, args=(number,), daemon=True) for number in range(CLAIMERS)]
    for thread in threads:
        thread.start()
    time.sleep(BEFORE_S)
    without = {name: list(values) for name, values in claims.took_s.items()}
    claims.took_s.clear()
    claims.took_s["without"] = [each for values in without.values() for each in values]
    began_s = time.perf_counter()
    try:
        migrate(claims.url)
    finally:
        took_s = time.perf_counter() - began_s
        claims.over.set()
        for thread in threads:
            thread.join()
    return {"migrations_s": round(took_s, 2)}


def main(arguments: list[str]) -> int:
    """Run the benchmark; 1 when a mark was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="in each table that grows")
    parser.add_argument("--since", default=FIRST, help="revision from which on migrations run beside claims")
    parser.add_argument("--pause-ms", type=float, default=5.0, help="between two claims of each of four threads")
    parser.add_argument("--quick", action="store_true", help="2,000 rows: it only shows that the program runs")
    options = parser.parse_args(arguments)
    rows, about = 2_000 if options.quick else options.rows, machine()
    with postgres() as own:
        url = parse_url(own.new_database()).render_as_string(hide_password=False)
        engine = engine_of(url)
        with engine.begin() as connection:
            fill_revision(connection, rows, tables=(*GROWING, "projects"))
            command.upgrade(config_on(connection), options.since)
        engine.dispose()
        claims = Claims(url=url, rows=rows, pause_s=options.pause_ms / 1000)
        times = measured(claims)
    if not all(claims.took_s.values()):
        print(f"no claim was made: {claims.failures[:1]}")
        return 1
    found = {revision: latencies_ms(values) | {"claims": len(values)} for revision, values in claims.took_s.items()}
    print(f"{'revision before':<16} {'claims':>8} {'p50 ms':>9} {'p99 ms':>9} {'max ms':>9}")
    for revision, each in found.items():
        print(f"{revision:<16} {each['claims']:>8} {each['p50']:>9g} {each['p99']:>9g} {each['max']:>9g}")
    longest_s = max(max(values) for values in claims.took_s.values())
    good = longest_s <= MARK_S and not claims.failures
    print(f"longest {longest_s * 1000:.1f} ms; failures {len(claims.failures)}; migrations {times['migrations_s']} s")
    conclude(
        {
            "benchmark": "migrations",
            "quick": options.quick,
            "machine": about,
            "rows": rows,
            "pause_ms": options.pause_ms,
            "since": options.since,
            "claims": found,
            "failures": claims.failures[:3],
            "longest_ms": round(longest_s * 1000, 1),
            "within_marks": good,
            **times,
        }
    )
    return 0 if good or options.quick else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
