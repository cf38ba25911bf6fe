"""Replay audits: drawn, placed, read, and decided. Read `settle_audits` first."""
