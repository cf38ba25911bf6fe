"""The front door. Composition roots live here."""

from giornata.cli.main import main

__all__ = ["main"]
