"""How far the histories of many jobs reach, as streams ask it, on both databases."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.fixtures.databases import opened
from tests.fixtures.picture_rig import PictureRig
from tests.fixtures.rows_read import rows_read, sent_statements
from tests.fixtures.store_rig import StoreRig
from tests.fixtures.users import ANN, BOB, claim, move_in, new_job

from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.attempts.report import add_log_lines, add_notice
from giornata.control.context import Context
from giornata.control.end_of_life.delete_job import delete_job
from giornata.control.jobs.reading.history_heads import JOBS_AT_ONCE, HistoryPart, read_heads
from giornata.control.jobs.reading.job_outputs import read_events, read_logs
from giornata.control.memory.process_cache import ProcessCache
from giornata.protocol.node.work import Heartbeat, LogLines, NoticeReport

EVENTS, LOGS, PICTURES, STEP = HistoryPart


@pytest.fixture
def home(ctx: Context) -> Context:
    move_in(ctx)
    return ctx


def test_heads_are_the_last_ids_of_each_part_of_each_job(home: Context) -> None:
    first, second = new_job(home), new_job(home, BOB)
    lease = claim(home)
    add_log_lines(home, lease.attempt_id, LogLines(first=0, lines=("a", "b")))
    add_notice(home, lease.attempt_id, NoticeReport(name="a-notice", data={}))
    assert lease.job_id == first.id
    heads = read_heads(home, {(part, job.id) for part in (EVENTS, LOGS) for job in (first, second)})
    assert heads == {
        (EVENTS, first.id): read_events(home, ANN, first.id, 0, 100).items[-1].id,
        (EVENTS, second.id): read_events(home, BOB, second.id, 0, 100).items[-1].id,
        (LOGS, first.id): read_logs(home, ANN, first.id, 0, 100).items[-1].id,
        (LOGS, second.id): 0,
    }


def test_head_of_steps_is_the_step_that_the_job_is_at(home: Context) -> None:
    going, waiting = new_job(home), new_job(home, BOB)
    heartbeat(home, claim(home).attempt_id, Heartbeat(step=7))
    found = read_heads(home, [(STEP, going.id), (STEP, waiting.id), (STEP, "job_none")])
    assert found == {(STEP, going.id): 7, (STEP, waiting.id): 0}


def test_head_of_an_order_is_the_number_of_its_ended_pictures(rig: StoreRig) -> None:
    pictures = PictureRig(rig)
    order = pictures.order(5)
    assert read_heads(pictures.ctx, [(PICTURES, order)]) == {(PICTURES, order): 0}
    pictures.draw(pictures.lease(most=2))
    assert read_heads(pictures.ctx, [(PICTURES, order)]) == {(PICTURES, order): 2}


def test_deleted_and_unknown_jobs_have_no_head(home: Context) -> None:
    kept, gone = new_job(home), new_job(home)
    delete_job(home, ANN, gone.id, cancel=True)
    asked = [(EVENTS, kept.id), (EVENTS, gone.id), (LOGS, gone.id), (EVENTS, "job_none")]
    assert list(read_heads(home, asked)) == [(EVENTS, kept.id)]


def test_statements_do_not_grow_with_the_jobs_until_there_are_very_many(home: Context) -> None:
    for count, statements in ((1, 1), (JOBS_AT_ONCE, 1), (JOBS_AT_ONCE + 1, 2)):
        with sent_statements() as sent:
            assert read_heads(home, [(EVENTS, f"job_{number}") for number in range(count)]) == {}
        assert len([text for text, _ in sent.statements if "max(events.id)" in text]) == statements


def test_heads_of_long_histories_read_a_row_or_two_of_each_job(new_postgres: Callable[[], str], ctx: Context) -> None:
    with opened(new_postgres()) as store:
        here = replace(ctx, store=store, memory=ProcessCache())
        move_in(here)
        jobs = [new_job(here).id for _ in range(5)]
        for number in range(len(jobs)):
            lease = claim(here, node=f"node_{number:08d}")
            add_log_lines(here, lease.attempt_id, LogLines(first=0, lines=("a line",) * 500))
        with sent_statements() as sent:
            heads = read_heads(here, [(part, job) for part in (EVENTS, LOGS) for job in jobs])
        assert len(heads) == 10
        assert sum(rows for rows, _ in rows_read(store, sent)) <= 4 * len(jobs)
