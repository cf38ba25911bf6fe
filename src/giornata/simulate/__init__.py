"""The real control plane on a virtual clock, with a modeled fleet. Read `run` first, then `node` and `plane`."""
