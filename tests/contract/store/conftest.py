"""Every test here runs on SQLite and on PostgreSQL."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fixtures.contexts import CountedIds, FinePictures, ManualClock, PlainPasswords
from tests.fixtures.databases import new_sqlite, opened
from tests.fixtures.postgres import (  # noqa: F401 - fixtures
    empty_postgres,
    new_postgres,
    postgres_server,
    postgres_template,
)
from tests.fixtures.store_rig import StoreRig

from giornata.blobs.filesystem import FilesystemBlobs
from giornata.control.context import Context
from giornata.store.database.database import Database


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh database, migrated."""
    if request.param == "postgresql":
        make: Callable[[], str] = request.getfixturevalue("new_postgres")
        return make()
    return new_sqlite(tmp_path)


@pytest.fixture
def store(database_url: str) -> Iterator[Database]:
    with opened(database_url) as database:
        yield database


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ctx(store: Database, clock: ManualClock, tmp_path: Path) -> Context:
    """The use cases' world on a fresh database; `install` has not run."""
    blobs = FilesystemBlobs(tmp_path / "blobs", signing_key=b"k" * 32, base_url="http://blobs.invalid", clock=clock)
    return Context(
        store=store,
        blobs=blobs,
        clock=clock,
        names=CountedIds(),
        pictures=FinePictures(),
        passwords=PlainPasswords(),
    )


@pytest.fixture
def rig(ctx: Context, store: Database, clock: ManualClock) -> StoreRig:
    """The same world, installed, with shorthands for tests of the node's side."""
    return StoreRig(ctx, store, clock)
