"""Migrations of the database by Alembic: `env` runs them, `versions` has one file for each revision."""
