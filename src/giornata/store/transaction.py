"""A transaction, with its groups of queries."""

from collections.abc import Callable
from functools import cached_property
from typing import TypeVar, cast

import sqlalchemy as sa

from giornata.control.ports import store
from giornata.store.attempts import Attempts
from giornata.store.bans import Bans
from giornata.store.budgets import Pausing, Spending
from giornata.store.costs import CostQueries
from giornata.store.datasets import Datasets, Inputs
from giornata.store.fleets import Fleets
from giornata.store.garbage import Garbage
from giornata.store.gauges import GaugeQueries
from giornata.store.job_reads import JobReads
from giornata.store.jobs import Jobs
from giornata.store.ledger import Ledger
from giornata.store.machines import Machines
from giornata.store.models import Models
from giornata.store.nodes import Nodes
from giornata.store.paces import Forecasts, Paces
from giornata.store.picture_leases import PictureLeases
from giornata.store.picture_orders import PictureOrders
from giornata.store.reports import Events, Reports
from giornata.store.results import Artifacts, Checkpoints
from giornata.store.submission import Submission
from giornata.store.tenants import Keys, Projects, Secrets
from giornata.store.uploads import Uploads

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
    checkpoints = _group(Checkpoints)
    artifacts = _group(Artifacts)
    inputs = _group(Inputs)
    reports = _group(Reports)
    projects = _group(Projects)
    keys = _group(Keys)
    secrets = _group(Secrets)
    uploads = _group(Uploads)
    datasets = _group(Datasets)
    models = _group(Models)
    job_reads = _group(JobReads)
    submission = _group(Submission)
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
