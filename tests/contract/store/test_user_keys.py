"""Installation, projects and keys."""

from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import sqlalchemy as sa
from tests.fixtures.contexts import ManualClock
from tests.fixtures.users import ANN, ANN_ADMIN, ANNS_NODE, BOB, NODE, ROOT, move_in

from giornata.control.access.authenticate import authenticate
from giornata.control.access.install import install, signing_key
from giornata.control.access.keys import create_key, list_keys, revoke_key
from giornata.control.context import Context
from giornata.control.projects.projects import create_project, list_projects
from giornata.domain.errors import Conflict, Forbidden, NotFound, Unauthenticated, Unavailable
from giornata.protocol.project.admin import ROOT_PROJECT, CreateKey, CreateProject, Scope
from giornata.store.database.database import Database
from giornata.store.schema import metadata


def test_an_installation_gets_one_admin_key_however_many_servers_start(ctx: Context) -> None:
    with pytest.raises(Unavailable, match="install"):
        signing_key(ctx)
    with ThreadPoolExecutor(4) as pool:
        secrets = [secret for secret in pool.map(lambda _: install(ctx), range(4)) if secret]
    assert len(secrets) == 1
    assert install(ctx) is None
    caller = authenticate(ctx, secrets[0])
    assert caller.is_root_admin
    assert signing_key(ctx) == signing_key(ctx)
    assert len(signing_key(ctx)) >= 32


def test_d115_a_secret_is_shown_once_and_stored_nowhere(ctx: Context, store: Database) -> None:
    move_in(ctx)
    created = create_key(ctx, ROOT, CreateKey(scope=Scope.MEMBER, project_id="ann"))
    assert created.secret.startswith(f"gk_{created.prefix}_")
    assert "secret" not in list_keys(ctx, ANN_ADMIN, None, 10).items[0].model_dump()
    with store.read() as tx:
        cells = [
            str(cell)
            for table in metadata.sorted_tables
            for row in tx.connection.execute(sa.select(table))
            for cell in row
        ]
    assert created.prefix in cells
    assert not [cell for cell in cells if created.secret.rsplit("_", 1)[1] in cell]


def test_a_key_is_known_by_its_whole_secret_until_it_is_revoked(ctx: Context) -> None:
    move_in(ctx)
    created = create_key(ctx, ANN_ADMIN, CreateKey(scope=Scope.MEMBER))
    assert authenticate(ctx, created.secret).project_id == "ann"
    for wrong in (created.secret + "x", created.secret[:-1], created.secret.upper(), "", "gk__", "gk_\x00", "ключ"):
        with pytest.raises(Unauthenticated):
            authenticate(ctx, wrong)
    revoked = revoke_key(ctx, ANN_ADMIN, created.id)
    assert revoked.revoked_at is not None
    assert revoke_key(ctx, ANN_ADMIN, created.id) == revoked
    with pytest.raises(Unauthenticated):
        authenticate(ctx, created.secret)


def test_the_use_of_a_key_is_noted_once_a_minute(ctx: Context, clock: ManualClock) -> None:
    move_in(ctx)
    created = create_key(ctx, ANN_ADMIN, CreateKey())

    def last_used() -> object:
        authenticate(ctx, created.secret)
        return list_keys(ctx, ANN_ADMIN, None, 10).items[0].last_used_at

    first = last_used()
    clock.advance_s(60)
    assert last_used() == first
    clock.advance_s(1)
    assert last_used() != first


def test_d35_keys_of_another_project_do_not_exist_for_its_admin(ctx: Context) -> None:
    move_in(ctx)
    bobs = create_key(ctx, ROOT, CreateKey(project_id="bob", scope=Scope.ADMIN))
    assert bobs.project_id == "bob"
    for key_id in (bobs.id, "key_unknown", "key\x00"):
        with pytest.raises(NotFound, match=f"no key {key_id}"):
            revoke_key(ctx, ANN_ADMIN, key_id)
    with pytest.raises(NotFound):
        create_key(ctx, ANN_ADMIN, CreateKey(project_id="bob"))
    with pytest.raises(NotFound):
        create_key(ctx, ROOT, CreateKey(project_id="nobody"))
    assert list_keys(ctx, ANN_ADMIN, None, 10).items == ()
    assert [key.id for key in list_keys(ctx, ROOT, None, 10).items] == [bobs.id]


@pytest.mark.parametrize("caller", [ANN, NODE, ANNS_NODE], ids=lambda caller: caller.key_id)
def test_keys_are_managed_only_by_admins_and_projects_created_only_by_the_operator(ctx: Context, caller) -> None:
    move_in(ctx)
    for forbidden in (
        lambda: create_key(ctx, caller, CreateKey()),
        lambda: list_keys(ctx, caller, None, 10),
        lambda: revoke_key(ctx, caller, "key_any"),
        lambda: create_project(ctx, caller, CreateProject(id="mine")),
    ):
        with pytest.raises(Forbidden):
            forbidden()
    with pytest.raises(Forbidden):
        create_project(ctx, ANN_ADMIN, CreateProject(id="mine"))


def test_the_last_admin_key_of_the_installation_cannot_be_revoked(ctx: Context) -> None:
    move_in(ctx)
    first = create_key(ctx, ROOT, CreateKey(scope=Scope.ADMIN))
    with pytest.raises(Conflict, match="last admin key"):
        revoke_key(ctx, ROOT, first.id)
    second = create_key(ctx, ROOT, CreateKey(scope=Scope.ADMIN))
    with ThreadPoolExecutor(1) as pool:
        with ctx.store.begin() as tx:
            assert set(tx.keys.lock_admins(ROOT_PROJECT)) == {first.id, second.id}
            other = pool.submit(revoke_key, ctx, ROOT, second.id)
            assert not wait([other], timeout=0.3).done, "two admins may revoke each other at the same moment"
            tx.keys.revoke(first.id, at_ms=ctx.clock.now_ms())
        with pytest.raises(Conflict, match="last admin key"):
            other.result()


def test_projects_are_seen_by_the_operator_and_their_own(ctx: Context) -> None:
    move_in(ctx)
    create_project(ctx, ROOT, CreateProject(id="carla", name="Carla's"))
    with pytest.raises(Conflict):
        create_project(ctx, ROOT, CreateProject(id="carla"))
    assert {project.id for project in list_projects(ctx, ROOT, None, 10).items} == {
        ROOT_PROJECT,
        "ann",
        "bob",
        "carla",
    }
    assert [project.id for project in list_projects(ctx, BOB, None, 10).items] == ["bob"]
    with pytest.raises(Forbidden):
        list_projects(ctx, NODE, None, 10)


def test_d34_keys_and_projects_come_in_pages(ctx: Context) -> None:
    move_in(ctx)
    made = {create_key(ctx, ANN_ADMIN, CreateKey(name=str(number))).id for number in range(5)}
    seen, cursor = [], None
    while True:
        page = list_keys(ctx, ANN_ADMIN, cursor, 2)
        seen += [key.id for key in page.items]
        cursor = page.next
        if cursor is None:
            break
    assert len(seen) == 5
    assert set(seen) == made
    first = list_projects(ctx, ROOT, None, 2)
    assert len(first.items) == 2
    assert len(list_projects(ctx, ROOT, first.next, 2).items) == 1
