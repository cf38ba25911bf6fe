"""The rules, in the standard library only: no I/O, clock or randomness. Read `jobs.job` and `jobs.reasons` first."""
