"""Rules of jobs and attempts: states, ends, turns, estimates, audits, sweeps. Read `job` and `reasons` first."""
