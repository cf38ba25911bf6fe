"""The interface of the store: transactions, and their groups of queries.

The store has one implementation, on SQLAlchemy. Its classes inherit from the protocols of these modules, so that each
query is documented here and nowhere else.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from giornata.control.ports.model_registry import Models
from giornata.control.ports.node_queries.audit_store import Audits
from giornata.control.ports.node_queries.fleet_store import Fleets
from giornata.control.ports.node_queries.gauges import GaugeQueries
from giornata.control.ports.node_queries.machine_store import Bans, Machines, Paces
from giornata.control.ports.node_queries.picture_store import PictureLeases, PictureOrders
from giornata.control.ports.node_queries.routing_store import RoutingQueries
from giornata.control.ports.node_queries.work_store import (
    Artifacts,
    Attempts,
    Checkpoints,
    Events,
    Inputs,
    Jobs,
    Ledger,
    Nodes,
    Reports,
)
from giornata.control.ports.user_queries.audit_log_store import AuditLog
from giornata.control.ports.user_queries.end_of_life_store import Deletions, Pins, RetentionQueries
from giornata.control.ports.user_queries.gallery_store import PictureGallery
from giornata.control.ports.user_queries.import_store import ImportedJobs
from giornata.control.ports.user_queries.money_store import CostQueries, Forecasts, Pausing, Spending
from giornata.control.ports.user_queries.people_store import Invitations, Memberships, Sessions, SignIns, Users
from giornata.control.ports.user_queries.quota_store import QuotaQueries
from giornata.control.ports.user_queries.sign_in_store import DeviceSignIns, UserIdentities
from giornata.control.ports.user_queries.sweep_store import Sweeps
from giornata.control.ports.user_queries.user_store import (
    Datasets,
    Garbage,
    JobReads,
    Keys,
    Projects,
    Secrets,
    Submission,
    Uploads,
)
from giornata.control.ports.user_queries.webhook_store import WebhookDeliveries, Webhooks


class Transaction(Protocol):
    """The groups of queries that share one transaction."""

    nodes: Nodes
    jobs: Jobs
    attempts: Attempts
    ledger: Ledger
    events: Events
    checkpoints: Checkpoints
    artifacts: Artifacts
    inputs: Inputs
    reports: Reports
    projects: Projects
    keys: Keys
    uploads: Uploads
    datasets: Datasets
    models: Models
    job_reads: JobReads
    submission: Submission
    sweeps: Sweeps
    garbage: Garbage
    spending: Spending
    forecasts: Forecasts
    costs: CostQueries
    pausing: Pausing
    secrets: Secrets
    users: Users
    memberships: Memberships
    invitations: Invitations
    sessions: Sessions
    sign_ins: SignIns
    device_sign_ins: DeviceSignIns
    identities: UserIdentities
    machines: Machines
    bans: Bans
    audits: Audits
    paces: Paces
    gauges: GaugeQueries
    fleets: Fleets
    picture_orders: PictureOrders
    picture_leases: PictureLeases
    picture_gallery: PictureGallery
    routing: RoutingQueries
    webhooks: Webhooks
    webhook_deliveries: WebhookDeliveries
    deletions: Deletions
    retention: RetentionQueries
    pins: Pins
    quotas: QuotaQueries
    audit_log: AuditLog
    imported_jobs: ImportedJobs

    def savepoint(self) -> AbstractContextManager[Callable[[], None]]:
        """Open a part of the transaction. What is yielded undoes that part when it is called; then nothing more is
        done in it.
        """


class Store(Protocol):
    """Opens transactions. They are short, and never nested."""

    def begin(self) -> AbstractContextManager[Transaction]:
        """Open a write transaction: it commits at the end, and rolls back on any exception.

        Raises Unavailable when the database is busy for too long, full, or away.
        """

    def read(self) -> AbstractContextManager[Transaction]:
        """Open a read transaction: one snapshot, no writes."""

    def only_here(self, name: str) -> AbstractContextManager[bool]:
        """Yield True when this server may run the loop `name` now: one server at a time may."""

    def erase_replaced(self) -> None:
        """See that the database's files hold nothing of the signing key that was replaced. Raises Unavailable."""
