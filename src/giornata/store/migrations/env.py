"""The environment that alembic runs migrations in. `giornata.store.database.migrate` hands over the connection."""

from alembic import context

from giornata.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
