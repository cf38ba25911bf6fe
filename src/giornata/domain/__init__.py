"""The rules, in the standard library only: no I/O, no clock, no randomness. Read `job` and `reasons` first."""
