"""What the demo shows, on a terminal and in a pipe."""

import io

import pytest
from rich.console import Console
from rich.text import Text
from tests.unit.cli.demo_cast import attempt, ended, job, node

from giornata.cli.demo_board import LiveBoard, PlainBoard, bar, board, clock, picture
from giornata.cli.demo_scene import Scene
from giornata.cli.ui.output import Output
from giornata.domain.job import JobState
from giornata.protocol.admin import NodeState

WIDTH = 100


class Time:
    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


def console(width=WIDTH):
    return Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, legacy_windows=False)


def drawn(scene, width=WIDTH):
    shown = console(width)
    shown.print(picture(scene, Text("training"), elapsed_s=65.0))
    return shown.file.getvalue().splitlines()


@pytest.fixture
def scene():
    hit = job("magenta-crescent", ended(), attempt(2, "local-1"), step=170, committed_step=150, interruptions=1)
    waiting = job("green-cactus", state=JobState.QUEUED)
    nodes = (node("local-1", job_ids=(hit.id,), pid=1234567, engine_pid=1234568),)
    return Scene(jobs=(hit, waiting), nodes=nodes, lost=(node("local-0"),))


def test_a_row_for_each_job_and_each_node(scene):
    lines = drawn(scene)
    crescent = next(line for line in lines if "magenta-crescent" in line)
    assert all(word in crescent for word in ("170/400", "local-1", "⚡", "attempt 2"))
    cactus = next(line for line in lines if "green-cactus" in line)
    assert "queued" in cactus
    assert "⚡" not in cactus
    (killed,) = [line for line in lines if line.strip().startswith("local-0")]
    assert "killed ⚡" in killed
    (busy,) = [line for line in lines if line.strip().startswith("local-1")]
    assert all(word in busy for word in ("busy", "agent 1234567", "engine 1234568", "magenta-crescent"))
    assert lines[-1].split() == ["1:05", "training"]


def test_everything_fits_a_terminal_of_100_columns(scene):
    worst = job(
        "two-tone-house-again",
        ended(),
        ended(2),
        attempt(3, "local-1"),
        step=100_000,
        total_steps=100_000,
        interruptions=3,
    )
    lines = drawn(Scene(jobs=(*scene.jobs, worst), nodes=scene.nodes, lost=scene.lost), width=200)
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


def test_a_board_redraws_itself_with_the_time_that_has_passed(scene):
    time_s, shown = Time(), console()
    live = LiveBoard(shown, time_s)
    live.stage("waiting")
    live.show(scene)
    time_s.now_s += 83
    shown.print(live)
    last = shown.file.getvalue().splitlines()[-1]
    assert "1:23" in last
    assert "waiting" in last


def test_a_pipe_gets_a_line_for_each_change_and_now_and_then_where_things_stand(scene, capsys):
    time_s = Time()
    plain = PlainBoard(Output(as_json=False), time_s)
    plain.show(scene)
    time_s.now_s += 12
    plain.stage("not told")
    plain.note("a note")
    plain.show(scene)
    plain.show(scene)
    assert capsys.readouterr().out.splitlines() == [
        " 0:00  magenta-crescent: taken by local-0",
        " 0:00  magenta-crescent: begins again on local-1",
        " 0:12  a note",
        " 0:12  steps: magenta-crescent 170/400, green-cactus 0/400",
    ]


def test_with_json_nothing_but_the_object_goes_to_standard_output(capsys):
    with board(Output(as_json=True)) as shown:
        shown.note("a note")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "a note" in captured.err


def test_idle_nodes_show_no_job():
    lines = drawn(Scene(nodes=(node(state=NodeState.IDLE, engine_pid=None),)))
    assert any(line.split() == ["local-0", "idle", "agent", "100"] for line in lines)


@pytest.mark.parametrize(("elapsed_s", "text"), [(0, "0:00"), (59.9, "0:59"), (605, "10:05")])
def test_the_clock(elapsed_s, text):
    assert clock(elapsed_s) == text
