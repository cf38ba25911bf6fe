"""Samples and scores of weights, by hand and beside a run. Read `sampling` first."""
