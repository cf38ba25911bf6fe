"""How many tokens a caption may have, and what is said of captions that have more. The marks of start and end do not
count."""

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


def longest_order(caption: str, *, separator: str, kept: int, count: Count) -> str:
    """Of all orders in which the parts of a caption may stand, one that has the most tokens.

    A part is followed by the separator and a space, so its tokens do not depend on what comes then. Only that the
    last part has no separator after it makes a difference.
    """
    parts = [part.strip() for part in caption.split(separator)]
    first, rest = parts[:kept], parts[kept:]
    if len(rest) > 1:
        last = max(range(len(rest)), key=lambda place: count(rest[place]) - count(rest[place] + separator))
        rest.append(rest.pop(last))
    return joined([*first, *rest], separator)


def joined(parts: Sequence[str], separator: str) -> str:
    """The parts of a caption as one text."""
    return f"{separator} ".join(parts)
