"""The environment that alembic runs migrations in. `giornata.store.database.migrate` hands over the connection.

Each migration is a transaction of its own, but on a connection that is in one already.
"""

from alembic import context

from giornata.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transaction_per_migration=True,
    on_version_apply=context.config.attributes.get("on_version_apply"),
)
with context.begin_transaction():
    context.run_migrations()
