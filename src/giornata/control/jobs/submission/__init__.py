"""Submission: faults of a spec, estimates, and the job itself. Read `submit` first."""
