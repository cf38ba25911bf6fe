"""Tables as CSV that no spreadsheet computes."""

import csv
import io

import pytest

from giornata.domain.csv_text import csv_text


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", "\r=", "\n=", " =", "  @"])
def test_a_text_that_a_spreadsheet_would_compute_begins_with_an_apostrophe(start: str) -> None:
    text = csv_text((f"{start}1+1", "cost"), [(f"{start}cmd|' /C calc'!A0", -5)])
    (header, _), (cell, number) = csv.reader(io.StringIO(text, newline=""))
    assert header == f"'{start}1+1"
    assert cell == f"'{start}cmd|' /C calc'!A0"
    assert number == "-5", "a number stays one"


def test_commas_quotes_and_line_ends_stay_within_their_cell() -> None:
    row = ['a,b "c"\nd', "", "2026-11-23"]
    assert list(csv.reader(io.StringIO(csv_text(("a", "b", "c"), [row]), newline=""))) == [["a", "b", "c"], row]
