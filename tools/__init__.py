"""Programs for the development of Giornata. Start one from the repository's root: `python -m tools.NAME`."""
