"""Queries for what users read and write. Read `user_store` and `records` first."""
