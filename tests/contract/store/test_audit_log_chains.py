"""The chains of the audit log: written by many at once, and broken by whoever changes the database by hand."""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from tests.fixtures.users import ANN, ANN_ADMIN, BOB, ROOT, move_in, new_job

from giornata.cli.operate.project.audit_log import checked
from giornata.control.access.install import install, put_admin_key, renew_signing_key
from giornata.control.access.keys import create_key
from giornata.control.access.read_audit_log import export_lines
from giornata.control.audit_log.chain import chain_rows
from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.stop_job import cancel
from giornata.domain.accounts.audit_log import AuditVerb, ChainCheck, ChainLink, linked
from giornata.domain.errors import Unavailable
from giornata.protocol.project.admin import CreateKey, Scope
from giornata.store.database.database import Database
from giornata.store.schema import audit_log, audit_log_heads

WRITERS, ROWS_EACH = 4, 8


@pytest.fixture
def two_projects(ctx: Context) -> Context:
    """The projects of ANN and BOB."""
    move_in(ctx)
    return ctx


def note(ctx: Context, caller: Caller = ANN, target: str = "thing") -> None:
    """One row, in a transaction of its own."""
    with ctx.store.begin() as tx:
        record_call(tx, caller, AuditVerb.JOB_CANCEL, target, at_ms=ctx.clock.now_ms(), changes={"n": 1})


def exported(ctx: Context, project_id: str = "ann") -> list[dict[str, Any]]:
    return [json.loads(line) for line in export_lines(ctx, ROOT, project_id, after=0, limit=1000)]


def check_of(ctx: Context, known: Mapping[str, ChainLink] | None = None) -> ChainCheck:
    """What verifying ANN's chain finds."""
    return checked(exported(ctx), known or {}, where="test")


def fault_of(ctx: Context, known: Mapping[str, ChainLink] | None = None) -> tuple[int, str] | None:
    """The first broken row, and why."""
    faults = check_of(ctx, known).first_faults()
    return (faults[0].number, faults[0].why) if faults else None


def by_hand(ctx: Context, *statements: sa.Executable) -> None:
    with ctx.store.begin() as tx:
        for statement in statements:
            tx.connection.execute(statement)  # type: ignore[attr-defined]


def row_number(number: int) -> sa.ColumnElement[bool]:
    return (audit_log.c.project_id == "ann") & (audit_log.c.number == number)


def test_rows_of_each_project_form_a_chain_of_their_own(two_projects: Context) -> None:
    job = new_job(two_projects)
    note(two_projects, BOB)
    assert exported(two_projects)[-1]["head"]["number"] == 2, "dataset and job"
    cancel(two_projects, ANN, job.id)
    *rows, head = exported(two_projects)
    assert [row["verb"] for row in rows] == ["dataset.create", "job.submit", "job.cancel"]
    assert [row["number"] for row in rows] == [1, 2, 3]
    assert {(row["project_id"], row["actor_kind"], row["actor"]) for row in rows} == {("ann", "key", "key_ann")}
    assert head["head"] == {"project_id": "ann", "number": 3, "sha256": rows[-1]["sha256"]}
    assert exported(two_projects, "bob")[0]["previous_sha256"] == "0" * 64
    assert fault_of(two_projects) is None


def test_row_waits_unchained_until_the_loop_comes(two_projects: Context) -> None:
    note(two_projects)
    with two_projects.store.read() as tx:
        (row,) = tx.audit_log.unchained(limit=10)
    assert (row.number, row.previous_sha256, row.sha256) == (None, None, None)
    assert chain_rows(two_projects) == 1
    assert chain_rows(two_projects) == 0


def test_transaction_that_rolls_back_leaves_no_row(two_projects: Context) -> None:
    with pytest.raises(Unavailable), two_projects.store.begin() as tx:
        record_call(tx, ANN, AuditVerb.JOB_CANCEL, "job_1", at_ms=1)
        raise Unavailable("the change failed")
    assert [line for line in exported(two_projects) if "head" not in line] == []


def changed(column: str, value: object) -> Callable[[Context], None]:
    return lambda ctx: by_hand(ctx, sa.update(audit_log).where(row_number(3)).values({column: value}))


def rows_swapped(ctx: Context) -> None:
    moves = ((3, 99), (4, 3), (99, 4))
    by_hand(ctx, *(sa.update(audit_log).where(row_number(a)).values(number=b) for a, b in moves))


def row_deleted(ctx: Context) -> None:
    by_hand(ctx, sa.delete(audit_log).where(row_number(3)))


def row_deleted_and_numbers_closed(ctx: Context) -> None:
    row_deleted(ctx)
    by_hand(ctx, *(sa.update(audit_log).where(row_number(n)).values(number=n - 1) for n in (4, 5)))


@pytest.mark.parametrize(
    ("tamper", "why"),
    [
        (changed("actor", "key_bob"), "its content was changed"),
        (changed("verb", "job.retry"), "its content was changed"),
        (changed("target", "job_9"), "its content was changed"),
        (changed("at_ms", 5), "its content was changed"),
        (changed("address", "203.0.113.9"), "its content was changed"),
        (changed("changes", {"n": 2}), "its content was changed"),
        (changed("sha256", "f" * 64), "its content was changed"),
        (changed("previous_sha256", "f" * 64), "it does not follow the row before it"),
        (rows_swapped, "it does not follow the row before it"),
        (row_deleted, "row 4 stands in its place"),
        (row_deleted_and_numbers_closed, "it does not follow the row before it"),
    ],
)
def test_changed_deleted_or_moved_row_is_named(
    two_projects: Context, tamper: Callable[[Context], None], why: str
) -> None:
    for _ in range(5):
        note(two_projects)
    assert check_of(two_projects).rows == 5
    tamper(two_projects)
    found = fault_of(two_projects)
    assert found is not None
    assert found[0] == 3
    assert found[1].startswith(why)


def test_newest_row_that_was_deleted_is_missed_at_the_head(two_projects: Context) -> None:
    for _ in range(3):
        note(two_projects)
    chain_rows(two_projects)
    by_hand(two_projects, sa.delete(audit_log).where(row_number(3)))
    assert fault_of(two_projects) == (3, "it is missing: 3 rows were written, 2 are here")


def test_chain_that_was_computed_anew_is_told_by_a_head_that_was_noted_before(two_projects: Context) -> None:
    for _ in range(3):
        note(two_projects)
    noted = check_of(two_projects).ends
    # Who may write to the database computes all hashes again, and the head.
    *rows, _ = exported(two_projects)
    link, forged = ChainLink(), []
    for row in rows:
        done = linked({**row, "actor": "nobody"}, link)
        link = ChainLink(number=done["number"], sha256=done["sha256"])
        forged.append(done)
    updates = [sa.update(audit_log).where(row_number(row["number"])).values(row) for row in forged]
    head = sa.update(audit_log_heads).where(audit_log_heads.c.project_id == "ann").values(sha256=link.sha256)
    by_hand(two_projects, *updates, head)
    assert fault_of(two_projects) is None, "a chain alone does not show this"
    assert fault_of(two_projects, noted) == (3, "it has another hash than the one that was noted of it")


def test_writers_and_chaining_servers_at_once_leave_one_sound_chain(two_projects: Context) -> None:
    with ThreadPoolExecutor(WRITERS + 2) as pool:
        writing = [pool.submit(lambda: [note(two_projects) for _ in range(ROWS_EACH)]) for _ in range(WRITERS)]
        chaining = [pool.submit(lambda: [_tried_to_chain(two_projects) for _ in range(ROWS_EACH)]) for _ in range(2)]
        for each in (*writing, *chaining):
            each.result(timeout=60)
    check = check_of(two_projects)
    assert (check.faults, check.rows) == ({}, WRITERS * ROWS_EACH)


def _tried_to_chain(ctx: Context) -> None:
    with suppress(Unavailable):  # the other one was quicker; the next call goes on
        chain_rows(ctx)


def test_row_that_commits_after_a_later_one_was_chained_is_not_missed(two_projects: Context, store: Database) -> None:
    if store.dialect_name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    with two_projects.store.begin() as tx:
        record_call(tx, ANN, AuditVerb.JOB_CANCEL, "early", at_ms=1)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(note, two_projects, ANN, "late").result(timeout=30)
            assert pool.submit(chain_rows, two_projects).result(timeout=30) == 1
    *rows, _ = exported(two_projects)
    assert [(row["number"], row["target"]) for row in rows] == [(1, "late"), (2, "early")]
    assert fault_of(two_projects) is None


def test_change_at_server_start_is_logged_as_the_systems(ctx: Context) -> None:
    install(ctx)
    put_admin_key(ctx, "gk_00000000_" + "a" * 40)
    put_admin_key(ctx, "gk_00000000_" + "b" * 40)
    renew_signing_key(ctx)
    *rows, _ = exported(ctx, "default")
    assert {row["actor_kind"] for row in rows} == {"system"}
    assert [row["verb"] for row in rows] == [
        "installation.install",
        "key.create",
        "key.create",
        "key.revoke",
        "installation.renew_signing_key",
    ]


def test_operators_change_stands_in_the_log_of_the_project_that_it_touches(two_projects: Context) -> None:
    create_key(two_projects, ROOT, CreateKey(scope=Scope.MEMBER, project_id="ann"))
    create_key(two_projects, ANN_ADMIN, CreateKey(scope=Scope.MEMBER))
    *rows, _ = exported(two_projects)
    assert [row["actor_kind"] for row in rows] == ["operator", "key"]
    assert rows[0]["changes"]["scopes"] == ["datasets", "generate", "jobs:read", "jobs:write"]
