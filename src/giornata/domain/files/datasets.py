"""The bounds of a dataset, and the notes about its pictures that users read."""

from collections.abc import Iterable, Mapping, Sequence

MAX_REPEATS = 1000
"""Times that an epoch may hold one picture."""

LEAST_RESOLUTION, MOST_RESOLUTION = 64, 2048
"""Bounds of the resolution that a picture may have of its own, in pixels."""

MAX_DATASET_ITEMS = 20_000
"""Pictures that a dataset may have at all, whatever a project's limit is."""


def usage_words(repeats: int, resolution: int | None) -> list[str]:
    """Return the use of a picture as words for a hash.

    The defaults add no word, so hashes from before pictures could have repeats or a resolution stay as they were.
    """
    return [*([str(repeats)] if repeats != 1 else []), *([] if resolution is None else [f"{resolution} px"])]


LISTED_NAMES = 20
TURNED = "turned as its EXIF orientation says"


def some_names(names: Sequence[str]) -> str:
    """The first twenty, and how many more there are."""
    more = len(names) - LISTED_NAMES
    return ", ".join(names[:LISTED_NAMES]) + (f" and {more} more" if more > 0 else "")


def picture_notes(notes: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Return one line for each note, with the names or the number of its pictures.

    The input is (name, notes) of every picture.
    """
    by_note: dict[str, list[str]] = {}
    total = 0
    for name, of_picture in notes:
        total += 1
        for note in of_picture:
            by_note.setdefault(note, []).append(name)
    return [_line(note, names, total) for note, names in by_note.items()]


def _line(note: str, names: Sequence[str], total: int) -> str:
    if note == TURNED:
        return (
            f"{len(names)} of {total} {'picture was' if len(names) == total == 1 else 'pictures were'} turned upright"
        )
    if len(names) == 1:
        return f"{names[0]}: {note}"
    return f"{len(names)} of {total} pictures: {note} ({some_names(names)})"


def enlarged_note(factors: Mapping[str, float], *, total: int, no_upscale: bool) -> str | None:
    """The pictures that are enlarged before they are trained on, with the factor of their sides; None for none.

    `no_upscale`: the job enlarges only pictures that are smaller than the least bucket.
    """
    found = sorted(
        ((factor, name) for name, factor in factors.items() if factor > 1), key=lambda each: (-each[0], each[1])
    )
    if not found:
        return None
    names = some_names([f"{name} ({factor:.2f} times)" for factor, name in found])
    verb = "picture is" if len(found) == total == 1 else "pictures are"
    hint = "" if no_upscale else "; use larger ones, a lower resolution, or enable_bucket with bucket_no_upscale"
    return f"{len(found)} of {total} {verb} enlarged, which blurs what is learned: {names}{hint}"
