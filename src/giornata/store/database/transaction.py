"""A transaction, with its groups of queries."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar, cast

import sqlalchemy as sa

from giornata.control.ports import store
from giornata.store.audit_log import AuditLog
from giornata.store.audits import Audits
from giornata.store.datasets import Datasets, Inputs
from giornata.store.end_of_life.deletions import Deletions
from giornata.store.end_of_life.pins import Pins
from giornata.store.end_of_life.retention import RetentionQueries
from giornata.store.garbage import Garbage
from giornata.store.gauges import GaugeQueries
from giornata.store.imported_jobs import ImportedJobs
from giornata.store.jobs.attempts import Attempts
from giornata.store.jobs.job_reads import JobReads
from giornata.store.jobs.jobs import Jobs
from giornata.store.jobs.reports import Events, Reports
from giornata.store.jobs.results import Artifacts, Checkpoints
from giornata.store.jobs.submission import Submission
from giornata.store.jobs.sweeps import Sweeps
from giornata.store.jobs.uploads import Uploads
from giornata.store.machines.bans import Bans
from giornata.store.machines.fleets import Fleets
from giornata.store.machines.machines import Machines
from giornata.store.machines.nodes import Nodes
from giornata.store.machines.paces import Forecasts, Paces
from giornata.store.models import Models
from giornata.store.money.budgets import Pausing, Spending
from giornata.store.money.costs import CostQueries
from giornata.store.money.ledger import Ledger
from giornata.store.people import Invitations, Memberships, Sessions, SignIns, Users
from giornata.store.pictures.picture_gallery import PictureGallery
from giornata.store.pictures.picture_leases import PictureLeases
from giornata.store.pictures.picture_orders import PictureOrders
from giornata.store.pictures.routing_queries import RoutingQueries
from giornata.store.quotas import QuotaQueries
from giornata.store.sign_ins_elsewhere import DeviceSignIns, UserIdentities
from giornata.store.tenants import Keys, Projects, Secrets
from giornata.store.webhook_deliveries import WebhookDeliveries
from giornata.store.webhooks import Webhooks

Group = TypeVar("Group")


def _group(kind: Callable[[sa.Connection, str], Group]) -> Group:
    """Make a group when it is first asked for: most transactions ask for few."""
    return cast(Group, cached_property(lambda tx: kind(tx.connection, tx.dialect_name)))


class Transaction(store.Transaction):
    """The groups of queries that share one transaction. The caller begins and ends the transaction."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self.connection = connection
        self.dialect_name = dialect_name

    nodes = _group(Nodes)
    jobs = _group(Jobs)
    attempts = _group(Attempts)
    ledger = _group(Ledger)
    events = _group(Events)
    bans = _group(Bans)
    audits = _group(Audits)
    checkpoints = _group(Checkpoints)
    artifacts = _group(Artifacts)
    inputs = _group(Inputs)
    reports = _group(Reports)
    projects = _group(Projects)
    keys = _group(Keys)
    secrets = _group(Secrets)
    users = _group(Users)
    memberships = _group(Memberships)
    invitations = _group(Invitations)
    sessions = _group(Sessions)
    sign_ins = _group(SignIns)
    device_sign_ins = _group(DeviceSignIns)
    identities = _group(UserIdentities)
    uploads = _group(Uploads)
    datasets = _group(Datasets)
    models = _group(Models)
    job_reads = _group(JobReads)
    submission = _group(Submission)
    sweeps = _group(Sweeps)
    garbage = _group(Garbage)
    fleets = _group(Fleets)
    machines = _group(Machines)
    paces = _group(Paces)
    gauges = _group(GaugeQueries)
    spending = _group(Spending)
    pausing = _group(Pausing)
    costs = _group(CostQueries)
    forecasts = _group(Forecasts)
    picture_orders = _group(PictureOrders)
    picture_leases = _group(PictureLeases)
    picture_gallery = _group(PictureGallery)
    routing = _group(RoutingQueries)
    webhooks = _group(Webhooks)
    webhook_deliveries = _group(WebhookDeliveries)
    deletions = _group(Deletions)
    retention = _group(RetentionQueries)
    pins = _group(Pins)
    quotas = _group(QuotaQueries)
    audit_log = _group(AuditLog)
    imported_jobs = _group(ImportedJobs)

    @contextmanager
    def savepoint(self) -> Iterator[Callable[[], None]]:
        """Open a part of the transaction that can be undone."""
        with self.connection.begin_nested() as nested:
            yield nested.rollback
