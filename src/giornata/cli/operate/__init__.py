"""Commands that run servers and nodes, and commands for their operators. Read `serve` first, then `composition`."""
