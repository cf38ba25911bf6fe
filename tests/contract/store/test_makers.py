"""Each row that a person or a key makes says who."""

from dataclasses import replace

from tests.fixtures.notifier import KeptRuns
from tests.fixtures.people import ROOT
from tests.fixtures.picture_rig import PictureRig
from tests.fixtures.store_rig import StoreRig
from tests.fixtures.users import Bytes
from tests.fixtures.webhooks import webhook, with_webhooks

from giornata.control.access.keep_secrets import set_secret
from giornata.control.caller import Caller
from giornata.control.jobs.reading.gallery import mark_pictures
from giornata.control.projects.projects import create_project, list_projects
from giornata.control.storage.uploads import request_uploads
from giornata.protocol.node.pictures import PictureId
from giornata.protocol.orders.gallery import MarkPictures
from giornata.protocol.project.admin import ROOT_PROJECT, CreateProject, Scope
from giornata.protocol.project.secrets import SetSecret
from giornata.protocol.uploads import UploadRequest
from giornata.store import schema

MADE_BY_PEOPLE = {
    *("datasets", "invitations", "jobs", "keys", "memberships", "models", "picture_tags", "project_secrets"),
    *("projects", "uploads", "users", "webhooks"),
}
SAY_WHO_IN_COLUMNS_OF_THEIR_OWN = {
    "audit_log": "actor",
    "deletions": "asked_by",
    "device_sign_ins": "user_id",
    "sessions": "user_id",
    "user_identities": "user_id",
}
# Rows that come with a row of the person's, which says who.
PARTS = {
    *("dataset_items", "idempotency", "imported_attempts", "job_inputs", "order_terms", "picture_orders", "pictures"),
    *("webhook_deliveries",),
}
# What servers, nodes and providers write by themselves.
OF_THE_PLATFORM = {
    *("artifacts", "attempts", "audit_log_heads", "audits", "bans", "billed_intervals", "blobs", "caches"),
    *("checkpoints", "events", "failed_sign_ins", "fleet_prices", "fleet_time", "fleets", "installation"),
    *("instances", "ledger", "logs", "machines", "metrics", "node_models", "nodes", "picture_failures"),
    *("reallocations", "request_counts", "strikes", "webhook_cursor"),
}
SOMEBODY = Caller(
    project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_x", user_id="user_ann", is_session=True
)
SOMEBODYS_KEY = replace(SOMEBODY, is_session=False)


def test_table_of_what_people_make_has_a_column_for_the_maker() -> None:
    tables = schema.metadata.tables
    known = MADE_BY_PEOPLE | SAY_WHO_IN_COLUMNS_OF_THEIR_OWN.keys() | PARTS | OF_THE_PLATFORM
    assert tables.keys() == known, "a new table goes into one of these sets"
    assert {name for name, table in tables.items() if "created_by" in table.c} == MADE_BY_PEOPLE
    assert all(column in tables[name].c for name, column in SAY_WHO_IN_COLUMNS_OF_THEIR_OWN.items())


def test_project_secret_webhook_upload_and_tag_say_who_made_them(rig: StoreRig) -> None:
    ctx = with_webhooks(rig.ctx, KeptRuns())
    assert create_project(ctx, SOMEBODY, CreateProject(id="new")).created_by == "user_ann"
    shown = {each.id: each.created_by for each in list_projects(ctx, ROOT, None, 50).items}
    assert (shown["new"], shown[ROOT_PROJECT]) == ("user_ann", None)
    assert webhook(ctx, SOMEBODY).created_by == "user_ann"
    assert set_secret(ctx, SOMEBODY, "HUB", SetSecret(value="eight-or-more")).created_by == "user_ann"
    assert set_secret(ctx, SOMEBODYS_KEY, "HUB", SetSecret(value="another-one")).created_by == "key_x"
    request_uploads(ctx, SOMEBODYS_KEY, UploadRequest(files=(Bytes(b"some").file,)))
    drawings = PictureRig(rig)
    order_id = drawings.order()
    lease = drawings.lease()
    drawings.report(lease, [drawings.upload(lease, picture) for picture in lease.pictures], complete=True)
    mark_pictures(ctx, SOMEBODY, MarkPictures(pictures=(PictureId(order_id=order_id, number=0),), starred=True))
    assert [row["created_by"] for row in rig.rows(schema.uploads)] == ["key_x"]
    assert [row["created_by"] for row in rig.rows(schema.picture_tags)] == ["user_ann"]
