"""What a dataset may hold."""

MAX_REPEATS = 1000
"""Times that an epoch may hold one picture."""
