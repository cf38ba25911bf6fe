"""Programs that measure Giornata. Start one from the repository's root: `python -m benchmarks.claim`."""
