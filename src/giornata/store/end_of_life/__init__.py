"""Queries that delete, that retention runs, and that pin. Read deletions first."""
