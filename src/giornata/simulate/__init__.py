"""The real control plane on a virtual clock, with a modelled fleet. Read `run` first, then `node` and `plane`."""
