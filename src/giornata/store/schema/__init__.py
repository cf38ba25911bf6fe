"""The tables of the store. Instants are epoch milliseconds (UTC) of the server's clock; money is integer
micro-dollars. Read `columns`, then `work`.

Rows of users belong to a project, directly or through the job that they hang on; fleets and machines are the
operator's.
"""

from giornata.store.schema.audit_log import audit_log, audit_log_heads
from giornata.store.schema.audits import audits
from giornata.store.schema.columns import metadata
from giornata.store.schema.deletions import deletions
from giornata.store.schema.fleets import (
    billed_intervals,
    fleet_prices,
    fleet_time,
    fleets,
    instances,
    machines,
    reallocations,
)
from giornata.store.schema.gallery import order_terms, picture_tags
from giornata.store.schema.imported import imported_attempts
from giornata.store.schema.made import artifacts, checkpoints, events, ledger, logs, metrics
from giornata.store.schema.people import (
    device_sign_ins,
    failed_sign_ins,
    invitations,
    memberships,
    sessions,
    user_identities,
    users,
)
from giornata.store.schema.pictures import picture_failures, picture_orders, pictures
from giornata.store.schema.storage import blobs, caches, dataset_items, datasets, models, uploads
from giornata.store.schema.tenants import idempotency, installation, keys, project_secrets, projects, request_counts
from giornata.store.schema.webhooks import webhook_cursor, webhook_deliveries, webhooks
from giornata.store.schema.work import attempts, bans, job_inputs, jobs, node_models, nodes, strikes

__all__ = [
    "artifacts",
    "attempts",
    "audit_log",
    "audit_log_heads",
    "audits",
    "bans",
    "billed_intervals",
    "blobs",
    "caches",
    "checkpoints",
    "dataset_items",
    "datasets",
    "deletions",
    "device_sign_ins",
    "events",
    "failed_sign_ins",
    "fleet_prices",
    "fleet_time",
    "fleets",
    "idempotency",
    "imported_attempts",
    "installation",
    "instances",
    "invitations",
    "job_inputs",
    "jobs",
    "keys",
    "ledger",
    "logs",
    "machines",
    "memberships",
    "metadata",
    "metrics",
    "models",
    "node_models",
    "nodes",
    "order_terms",
    "picture_failures",
    "picture_orders",
    "picture_tags",
    "pictures",
    "project_secrets",
    "projects",
    "reallocations",
    "request_counts",
    "sessions",
    "strikes",
    "uploads",
    "user_identities",
    "users",
    "webhook_cursor",
    "webhook_deliveries",
    "webhooks",
]
