"""What the demo shows, on a terminal and in a pipe."""

import io

import pytest
from examples.demo.display import Display, bar, clock
from examples.demo.snapshot import DemoSnapshot
from rich.console import Console
from tests.unit.examples.demo_rig import attempt, ended, job, node

from giornata.domain.jobs.job import JobState
from giornata.protocol.project.admin import NodeState

WIDTH = 100


class DisplayTime:
    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


def console(width=WIDTH):
    return Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, legacy_windows=False)


def drawn(snapshot, width=WIDTH):
    time_s, quiet, shown = DisplayTime(), Console(file=io.StringIO()), console(width)
    display = Display(quiet, live=True, monotonic_s=time_s)
    display.stage("training")
    display.show(snapshot)
    time_s.now_s += 65
    shown.print(display)
    return shown.file.getvalue().splitlines()


@pytest.fixture
def snapshot():
    hit = job("magenta-crescent", ended(), attempt(2, "local-1"), step=170, committed_step=150, interruptions=1)
    waiting = job("green-cactus", state=JobState.QUEUED)
    nodes = (node("local-1", job_ids=(hit.id,), pid=1234567, engine_pid=1234568),)
    return DemoSnapshot(jobs=(hit, waiting), nodes=nodes, killed=(node("local-0"),))


def test_a_row_for_each_job_and_each_node(snapshot):
    lines = drawn(snapshot)
    crescent = next(line for line in lines if "magenta-crescent" in line)
    assert all(word in crescent for word in ("170/400", "local-1", "⚡", "attempt 2"))
    cactus = next(line for line in lines if "green-cactus" in line)
    assert "queued" in cactus
    assert "⚡" not in cactus
    (killed,) = [line for line in lines if line.strip().startswith("local-0")]
    assert "killed ⚡" in killed
    (busy,) = [line for line in lines if line.strip().startswith("local-1")]
    assert all(word in busy for word in ("busy", "agent 1234567", "engine 1234568", "magenta-crescent"))
    assert lines[-1].split()[::2] == ["1:05", "training"]


def test_demo_table_fits_terminal_of_100_columns(snapshot):
    worst = job(
        "two-tone-house-again",
        ended(),
        ended(2),
        attempt(3, "local-1"),
        step=100_000,
        total_steps=100_000,
        interruptions=3,
    )
    lines = drawn(DemoSnapshot(jobs=(*snapshot.jobs, worst), nodes=snapshot.nodes, killed=snapshot.killed), width=200)
    assert max(map(len, (line.rstrip() for line in lines))) <= WIDTH


def test_the_bar_tells_what_is_safe_from_what_is_not():
    def parts(**fields):
        text = bar(job("heart", attempt(), **fields), cells=20)
        lengths = {str(span.style): span.end - span.start for span in text.spans}
        return lengths.get("green", 0), lengths.get("yellow", 0), lengths.get("dim", 0)

    assert parts() == (0, 0, 20)
    assert parts(step=200, committed_step=100) == (5, 5, 10)
    assert parts(step=100, committed_step=200) == (10, 0, 10), "a resumed job has not reported a step yet"
    assert parts(step=400, committed_step=350, state=JobState.SUCCEEDED) == (20, 0, 0)
    assert parts(step=7, total_steps=None) == (0, 20, 0)


def test_display_on_a_terminal_redraws_the_tables_and_erases_them_at_the_end(snapshot):
    time_s, shown = DisplayTime(), console()
    with Display(shown, live=True, monotonic_s=time_s) as display:
        display.note("⚡ a note")
        display.stage("waiting")
    written = shown.file.getvalue()
    assert " 0:00  ⚡ a note" in written
    assert "waiting" in written


def test_display_in_a_pipe_prints_a_line_for_each_change_and_the_steps_now_and_then(snapshot):
    time_s, shown = DisplayTime(), Console(file=io.StringIO(), width=40)
    with Display(shown, live=False, monotonic_s=time_s) as display:
        display.show(snapshot)
        time_s.now_s += 12
        display.stage("not printed")
        display.note("a note")
        display.show(snapshot)
        display.show(snapshot)
    assert shown.file.getvalue().splitlines() == [
        " 0:00  magenta-crescent: taken by local-0",
        " 0:00  magenta-crescent: begins again on local-1",
        " 0:12  a note",
        " 0:12  steps: magenta-crescent 170/400, green-cactus 0/400",
    ]


def test_idle_nodes_show_no_job():
    lines = drawn(DemoSnapshot(nodes=(node(state=NodeState.IDLE, engine_pid=None),)))
    assert any(line.split() == ["local-0", "idle", "agent", "100"] for line in lines)


@pytest.mark.parametrize(("elapsed_s", "text"), [(0, "0:00"), (59.9, "0:59"), (605, "10:05")])
def test_demo_clock_formats_minutes_and_seconds(elapsed_s, text):
    assert clock(elapsed_s) == text
