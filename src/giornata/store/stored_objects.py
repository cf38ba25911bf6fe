"""List the objects that committed rows name, with their hashes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from giornata.domain.generation.picture import PictureState, picture_key
from giornata.store.database.dialects import parse_url, sqlite_reader
from giornata.store.database.migrate import revision_of
from giornata.store.schema import blobs, pictures

FETCHED_ROWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object that a committed row names."""

    key: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteSnapshot:
    """A SQLite file to which nobody writes."""

    path: Path

    def revision(self) -> str | None:
        """Return the latest migration that the database has seen; None for a database without any."""
        with self._connection() as connection:
            return revision_of(connection)

    def objects(self) -> Iterator[StoredObject]:
        """Yield all objects of blobs and of pictures. A blob that the server has found to be lost is none."""
        of_blobs = sa.select(blobs.c.key, blobs.c.size_bytes, blobs.c.sha256).where(blobs.c.lost_at_ms.is_(None))
        has_result = (pictures.c.state == PictureState.SUCCEEDED) & pictures.c.sha256.is_not(None)
        of_pictures = (
            sa.select(pictures.c.project_id, pictures.c.lease, pictures.c.sha256, pictures.c.size_bytes)
            .where(has_result)
            .distinct()
        )
        with self._connection() as connection:
            streaming = connection.execution_options(yield_per=FETCHED_ROWS)
            for key, size_bytes, sha256 in streaming.execute(of_blobs):
                yield StoredObject(key=key, size_bytes=size_bytes, sha256=sha256)
            for project_id, lease, sha256, size_bytes in streaming.execute(of_pictures):
                key = picture_key(project_id, lease, sha256)
                yield StoredObject(key=key, size_bytes=size_bytes, sha256=sha256)

    @contextmanager
    def _connection(self) -> Iterator[sa.Connection]:
        engine = sqlite_reader(parse_url(f"sqlite:///{self.path}"))
        try:
            with engine.connect() as connection:
                yield connection
        finally:
            engine.dispose()
