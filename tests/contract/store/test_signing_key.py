"""The signing key and the operator's admin key, on both databases."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from cryptography.fernet import Fernet

from giornata.cli.operate.composition import FernetSealer
from giornata.control.access.install import (
    GIVEN_KEY_NAME,
    install,
    put_admin_key,
    read_signing_key,
    renew_signing_key,
    seal_signing_key,
    signing_key,
)
from giornata.control.context import Context
from giornata.control.memory.process_cache import ProcessCache
from giornata.domain.errors import Unavailable
from giornata.protocol.project.admin import ROOT_PROJECT
from giornata.store.database.database import Database

FIRST = "gk_00000001_" + "a" * 43
SECOND = "gk_00000002_" + "b" * 43


@pytest.fixture
def sealing(ctx: Context) -> Context:
    """The world of a server that has a sealing key."""
    return restarted(replace(ctx, sealer=FernetSealer(Fernet.generate_key().decode())))


def restarted(ctx: Context) -> Context:
    return replace(ctx, memory=ProcessCache())


def test_a_key_is_sealed_from_the_beginning(sealing: Context, store: Database) -> None:
    install(sealing)
    with store.read() as tx:
        kept = tx.projects.signing_key()
    assert kept is not None
    assert kept.clear == ""
    assert kept.sealed is not None
    assert signing_key(sealing).decode() not in kept.sealed
    assert signing_key(restarted(sealing)) == signing_key(sealing)
    assert not seal_signing_key(sealing), "there is nothing left to seal"


def test_a_clear_key_is_sealed_and_stays_the_same(ctx: Context, sealing: Context, store: Database) -> None:
    install(ctx)
    clear = signing_key(ctx)
    assert seal_signing_key(sealing)
    with store.read() as tx:
        kept = tx.projects.signing_key()
        assert read_signing_key(tx, sealing) == clear
    assert kept is not None
    assert kept.clear == ""
    assert not seal_signing_key(restarted(ctx)), "a server without a sealing key seals nothing"
    with pytest.raises(Unavailable, match="sealed with another key"):
        signing_key(restarted(ctx))


def test_a_new_signing_key_is_another(sealing: Context) -> None:
    install(sealing)
    before = signing_key(sealing)
    renew_signing_key(sealing)
    assert signing_key(sealing) != before
    assert signing_key(restarted(sealing)) == signing_key(sealing)


def keys_of_settings(store: Database) -> dict[str, bool]:
    """By prefix: whether it is still good."""
    with store.read() as tx:
        page = tx.keys.page(project_id=ROOT_PROJECT, before=None, limit=100)
    return {key.prefix: key.revoked_at_ms is None for key in page if key.name == GIVEN_KEY_NAME}


def test_servers_that_start_together_with_one_key_install_it_once(ctx: Context, store: Database) -> None:
    def start(_: int) -> str | None:
        drawn = install(ctx, admin_key=FIRST)
        put_admin_key(ctx, FIRST)
        return drawn

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(start, range(4))) == [None] * 4
    assert keys_of_settings(store) == {"00000001": True}


def test_servers_that_start_together_with_the_next_key_end_the_one_before(ctx: Context, store: Database) -> None:
    install(ctx, admin_key=FIRST)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: put_admin_key(ctx, SECOND), range(4)))
    assert keys_of_settings(store) == {"00000001": False, "00000002": True}
