"""Scores of weights, and their evaluation beside a run. Read `beside` first."""
