"""Queries for what was spent, by whom and for what. Read ledger first."""
