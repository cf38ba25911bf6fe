"""What a table looks like on terminals of several widths, and in a pipe."""

import io

import pytest
from rich.console import Console

from giornata.cli.ui.output import Output

ID = "job_01m7yzme4vzf3pepeej6qk481t"
HEADERS = ("id", "name", "state", "cost", "submitted")
ROWS = [
    (ID, "my pictures of a dog at the beach", "recovering", "$0.002259", "1:02:03 h ago"),
    (ID, "[/red] :dog: [bold]", "running", "–", "5 s ago"),
]


def shown(width: int, *, terminal: bool = True) -> str:
    out, screen = Output(as_json=False), io.StringIO()
    out.console = Console(file=screen, force_terminal=terminal, color_system=None, width=width, soft_wrap=True)
    out.table(HEADERS, ROWS, right=(3,), prose=(1,), spare=(4, 3))
    return screen.getvalue()


def test_table_on_wide_terminal_shows_all_columns_on_one_line_per_row() -> None:
    lines = shown(140).splitlines()
    assert len(lines) == 3
    assert all(word in lines[1] for word in ROWS[0])
    assert "no room" not in shown(140)


@pytest.mark.parametrize(("width", "left_out"), [(90, ""), (72, "submitted"), (58, "cost, submitted")])
def test_a_narrow_terminal_does_without_what_can_be_spared_and_says_so(width: int, left_out: str) -> None:
    text = shown(width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count(ID) == 2 and "recovering" in text and "…" not in text
    assert (f"no room for: {left_out}" in text) == bool(left_out)


def test_not_even_the_narrowest_cuts_an_id() -> None:
    assert shown(20).count(ID) == 2


def test_names_are_text_and_no_markup() -> None:
    assert "[/red] :dog: [bold]" in shown(140)


def test_say_prints_text_with_markup_characters_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).say("[/red] a photo of a :dog:")
    assert capsys.readouterr().out == "[/red] a photo of a :dog:\n"


def test_a_pipe_gets_every_column_between_tabs() -> None:
    assert shown(20, terminal=False).splitlines()[2].split("\t") == list(ROWS[1])
