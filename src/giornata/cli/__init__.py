"""The commands, and the composition roots of the server and the node. Read `main`, then `command_index`."""

from giornata.cli.main import main

__all__ = ["main"]
