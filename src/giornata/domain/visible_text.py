"""Texts of users, escaped so that they control no terminal and forge no line.

Names, log lines and error messages come from users, nodes and libraries. A terminal obeys escape sequences in them; a
line end in them begins a line that no program printed; a bidirectional control shows characters in another order.
"""

import re

# All of C0 and C1 but tab and line feed, DEL, line and paragraph separators, and what changes the direction of text.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_ENDS = re.compile("[\t\n]")


def visible(text: str) -> str:
    r"""Return the text with escape sequences and the like written out, as `\x1b`. Carriage returns are left out:
    tools that redraw a line write many of them.
    """
    return _COMMANDS.sub(_written_out, text.replace("\r", ""))


def visible_line(text: str) -> str:
    r"""Return the text as one line and one cell of a table: tabs and line ends are written out, too."""
    return _ENDS.sub(_written_out, visible(text))


def _written_out(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
