"""Names, log lines and errors of strangers on a terminal, in a pipe and in a log file."""

import io
import logging
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from giornata.cli.operate.fleet.logs import FORMAT, TextLines
from giornata.cli.ui.output import Output
from giornata.cli.ui.watch import progress_bar
from giornata.domain.errors import Conflict, Fault, InvalidInput
from giornata.domain.visible_text import visible, visible_line

# Sets the title, clears the screen, hides what follows, writes over the line, shows characters backwards.
HOSTILE = "\x1b]0;mine\x07\x1b[2J\x1b[8m\x9b31mred\r\u202egnp.exe\x00"
COMMANDS = set("\x1b\x07\x9b\r\u202e\x00")


@pytest.fixture
def screen() -> tuple[Output, io.StringIO]:
    """A command's output on a terminal without colors, so that rich itself writes no escape sequence."""
    out, written = Output(as_json=False), io.StringIO()
    out.console = Console(file=written, force_terminal=True, color_system=None, width=200, soft_wrap=True)
    return out, written


@given(st.text())
def test_visible_text_commands_nothing_and_a_visible_line_is_one_line(text: str) -> None:
    for each in visible(text):
        assert each in "\t\n" or (unicodedata.category(each) != "Cc" and unicodedata.bidirectional(each) not in BIDI)
    assert len(visible_line(text).splitlines()) <= 1
    assert "\t" not in visible_line(text)


BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@given(st.text(st.characters(categories=("L", "N", "P", "S", "Zs"))))
def test_text_of_people_stays_as_it_is(text: str) -> None:
    assert visible(text) == text == visible_line(text)


def test_lines_hints_and_cells_of_strangers_command_no_terminal(screen: tuple[Output, io.StringIO]) -> None:
    out, written = screen
    out.say(HOSTILE)
    out.hint(HOSTILE)
    out.table(("name", "state"), [(HOSTILE, "idle")])
    assert COMMANDS & set(written.getvalue()) == set()
    assert written.getvalue().count(r"\x1b]0;mine\x07\x1b[2J") == 3


def test_progress_bar_of_a_hostile_name_commands_no_terminal(screen: tuple[Output, io.StringIO]) -> None:
    out, _ = screen
    bar = progress_bar(out)
    number = bar.add_task("\x1b[2J", note="\x9b2J")
    (task,) = [task for task in bar.tasks if task.id == number]
    texts = [column.render(task) for column in (bar.columns[0], bar.columns[-1])]
    assert [text.plain for text in texts] == [r"\x1b[2J", r"\x9b2J"]  # type: ignore[union-attr]


@pytest.mark.parametrize("error", [Conflict(HOSTILE), InvalidInput([Fault(where=HOSTILE, message=HOSTILE)])])
def test_errors_that_quote_a_stranger_command_no_terminal(
    error: Conflict | InvalidInput, capsys: pytest.CaptureFixture[str]
) -> None:
    Output(as_json=False).error(error)
    assert COMMANDS & set(capsys.readouterr().err) == set()


def test_tabs_and_line_ends_of_a_name_make_no_cell_and_no_row_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).table(("name", "cost"), [("mine\t$0\nforged", "$9")])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t") for line in lines] == [["name", "cost"], [r"mine\t$0\nforged", "$9"]]


def test_line_ends_in_a_quoted_text_forge_no_line_of_a_log() -> None:
    said = "nobody\n2026-01-01 00:00:00,000 INFO giornata.api all is well\x1b[2J"
    record = logging.LogRecord("giornata.api", logging.WARNING, __file__, 1, "refused %s", (said,), None)
    line = TextLines(FORMAT).format(record)
    assert len(line.splitlines()) == 1
    assert r"refused nobody\n2026" in line and "\x1b" not in line
