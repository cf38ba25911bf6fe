"""Migrations of the database by Alembic. Read `env`, which runs them; `versions` has one file for each revision."""
