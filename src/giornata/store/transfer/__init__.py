"""Move an installation from SQLite to PostgreSQL. Read `move_store` first, then `copy_tables`."""
