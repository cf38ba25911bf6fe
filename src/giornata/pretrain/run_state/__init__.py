"""The state of a run in its storage, and the proof of it. Read `progress` and `committed` first."""
