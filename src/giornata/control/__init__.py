"""Use cases: one verb a file. What they need is in `ports`."""
