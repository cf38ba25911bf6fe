"""Sealed secrets, on both databases."""

from dataclasses import replace

from tests.fixtures.users import move_in

from giornata.control.context import Context
from giornata.control.ports.user_queries.user_store import SecretRecord

SECRET = SecretRecord(project_id="ann", name="HUB", sealed="sealed-1", created_at_ms=1, changed_at_ms=1)


def test_secrets_belong_to_a_project_and_are_replaced_in_place(ctx: Context) -> None:
    move_in(ctx)
    with ctx.store.begin() as tx:
        tx.secrets.put(SECRET)
        tx.secrets.put(replace(SECRET, project_id="bob", sealed="bobs"))
        tx.secrets.put(replace(SECRET, name="A", sealed="other"))
    with ctx.store.begin() as tx:
        tx.secrets.put(replace(SECRET, sealed="sealed-2", created_at_ms=5, changed_at_ms=5))
    with ctx.store.read() as tx:
        assert tx.secrets.get("ann", "HUB") == replace(SECRET, sealed="sealed-2", changed_at_ms=5)
        assert tx.secrets.get("bob", "A") is None
        assert [each.name for each in tx.secrets.of_project("ann")] == ["A", "HUB"]
    with ctx.store.begin() as tx:
        assert tx.secrets.drop("ann", "HUB")
        assert not tx.secrets.drop("ann", "HUB")
    with ctx.store.read() as tx:
        assert [each.name for each in tx.secrets.of_project("ann")] == ["A"]
        assert [each.sealed for each in tx.secrets.of_project("bob")] == ["bobs"]


def test_a_record_does_not_show_what_is_sealed() -> None:
    assert "sealed-1" not in repr(SECRET)
