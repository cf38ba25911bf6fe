"""Check the number of tokens of captions, and report captions with too many.

The marks of start and end do not count.
"""

from collections.abc import Callable, Iterable, Sequence

from giornata.domain.errors import Fault

LENGTHS = (75, 150, 225)
"""Values of `max_token_length`: one, two or three chunks of a CLIP text encoder."""
CHUNK = LENGTHS[0]
SHOWN = 20

Count = Callable[[str], int]
"""Tokens of a text, the marks of start and end left out."""


def too_long(named: Iterable[tuple[str, str]], *, count: Count, limit: int) -> list[Fault]:
    """A fault for each of the first twenty (where, text) with more than `limit` tokens, and one for the rest."""
    found = [(where, tokens) for where, text in named if (tokens := count(text)) > limit]
    faults = [
        Fault(where=where, message=f"has {tokens} tokens; at most {limit} fit", hint=_hint(tokens, limit))
        for where, tokens in found[:SHOWN]
    ]
    if more := found[SHOWN:]:
        message = f"{len(more)} more have more than {limit} tokens; the longest has {max(t for _, t in more)}"
        faults.append(Fault(where="captions", message=message, hint=_hint(max(t for _, t in more), limit)))
    return faults


def _hint(tokens: int, limit: int) -> str:
    room = next((length for length in LENGTHS if tokens <= length and length > limit), None)
    wider = "" if room is None else f" set max_token_length to {room},"
    return f"shorten it,{wider} or set truncate_captions to true, which cuts what does not fit"


def parts_of(
    caption: str, *, separator: str, kept: int, keep_separator: str | None = None
) -> tuple[list[str], list[str], list[str]]:
    """The parts of a caption that stay first, those that change places, and those that stay last.

    A caption with `keep_separator` keeps the parts before it, and those behind a second one, as in sd-scripts
    (`BaseDataset.process_caption`). Any other caption keeps its first `kept` parts.
    """
    if keep_separator is None or keep_separator not in caption:
        parts = [part.strip() for part in caption.split(separator)]
        return parts[:kept], parts[kept:], []
    first, rest, last = (*caption.split(keep_separator, 2), "")[:3]
    return _filled(first, separator), _filled(rest, separator), _filled(last, separator)


def _filled(text: str, separator: str) -> list[str]:
    return [part.strip() for part in text.split(separator) if part.strip()]


def longest_order(caption: str, *, separator: str, kept: int, count: Count, keep_separator: str | None = None) -> str:
    """Return an order of a caption's parts that has the most tokens of all orders.

    A part is followed by the separator and a space, so its tokens do not depend on what comes then. Only that the
    last part has no separator after it makes a difference.
    """
    first, rest, end = parts_of(caption, separator=separator, kept=kept, keep_separator=keep_separator)
    if len(rest) > 1:
        last = max(range(len(rest)), key=lambda place: count(rest[place]) - count(rest[place] + separator))
        rest.append(rest.pop(last))
    return joined([*first, *rest, *end], separator)


def joined(parts: Sequence[str], separator: str) -> str:
    """The parts of a caption as one text."""
    return f"{separator} ".join(parts)
