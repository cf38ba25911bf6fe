"""Programs that use Giornata as a user would. Start one from the repository's root: `python -m examples.demo`."""
