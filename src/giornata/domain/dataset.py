"""What a dataset may hold."""

MAX_REPEATS = 1000
"""Times that an epoch may hold one picture."""

LEAST_RESOLUTION, MOST_RESOLUTION = 64, 2048
"""Bounds of the resolution that a picture may have of its own, in pixels."""

MAX_DATASET_ITEMS = 20_000
"""Pictures that a dataset may have at all, whatever a project's limit is."""


def usage_words(repeats: int, resolution: int | None) -> list[str]:
    """How a picture is used, as words for a hash. The defaults add no word, so hashes from before pictures could have
    repeats or a resolution stay as they were."""
    return [*([str(repeats)] if repeats != 1 else []), *([] if resolution is None else [f"{resolution} px"])]
