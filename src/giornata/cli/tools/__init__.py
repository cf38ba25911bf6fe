"""Commands that need no server: presets, the tiny model and the simulator. Read `model` first."""
