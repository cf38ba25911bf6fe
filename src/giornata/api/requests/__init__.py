"""Requests before a route sees them: limits, callers, queries, bodies. Read `callers` first."""
