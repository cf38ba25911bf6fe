"""The API over SQLite and over PostgreSQL."""

from tests.fixtures.postgres import new_postgres, postgres_server, postgres_template  # noqa: F401 - fixtures
