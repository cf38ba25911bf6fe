"""The engine process of a node: its start, its messages and its replacement. Read engine_process first."""
