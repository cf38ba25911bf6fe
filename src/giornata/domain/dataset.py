"""What a dataset may hold."""

MAX_REPEATS = 1000
"""Times that an epoch may hold one picture."""

MAX_DATASET_ITEMS = 20_000
"""Pictures that a dataset may have at all, whatever a project's limit is."""
