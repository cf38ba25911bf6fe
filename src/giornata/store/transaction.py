"""A transaction and the groups of queries that run in it. A group is made when it is first asked for."""

from functools import cached_property

import sqlalchemy as sa

from giornata.store.attempts import Attempts
from giornata.store.bans import BanQueries, Judgements
from giornata.store.budgets import Pausing, Spending
from giornata.store.costs import CostQueries
from giornata.store.datasets import DatasetQueries, Inputs
from giornata.store.fleets import Fleets
from giornata.store.garbage import GarbageQueries
from giornata.store.gauges import GaugeQueries
from giornata.store.job_reads import JobReadQueries
from giornata.store.jobs import Jobs
from giornata.store.ledger import Ledger
from giornata.store.machines import Machines
from giornata.store.nodes import Nodes
from giornata.store.paces import ForecastQueries, Paces
from giornata.store.reports import Events, Reports
from giornata.store.results import Artifacts, Checkpoints
from giornata.store.submission import SubmissionQueries
from giornata.store.tenants import KeyQueries, ProjectQueries, SecretQueries
from giornata.store.uploads import UploadQueries


class Tx:
    """`connection` is in a transaction that somebody else begins and ends."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self.connection = connection
        self.dialect_name = dialect_name

    @cached_property
    def nodes(self) -> Nodes:
        return Nodes(self.connection, self.dialect_name)

    @cached_property
    def jobs(self) -> Jobs:
        return Jobs(self.connection, self.dialect_name)

    @cached_property
    def attempts(self) -> Attempts:
        return Attempts(self.connection, self.dialect_name)

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.connection, self.dialect_name)

    @cached_property
    def events(self) -> Events:
        return Events(self.connection, self.dialect_name)

    @cached_property
    def judgements(self) -> Judgements:
        return Judgements(self.connection, self.dialect_name)

    @cached_property
    def bans(self) -> BanQueries:
        return BanQueries(self.connection)

    @cached_property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.connection, self.dialect_name)

    @cached_property
    def artifacts(self) -> Artifacts:
        return Artifacts(self.connection, self.dialect_name)

    @cached_property
    def inputs(self) -> Inputs:
        return Inputs(self.connection, self.dialect_name)

    @cached_property
    def reports(self) -> Reports:
        return Reports(self.connection, self.dialect_name)

    @cached_property
    def projects(self) -> ProjectQueries:
        return ProjectQueries(self.connection, self.dialect_name)

    @cached_property
    def keys(self) -> KeyQueries:
        return KeyQueries(self.connection, self.dialect_name)

    @cached_property
    def secrets(self) -> SecretQueries:
        return SecretQueries(self.connection, self.dialect_name)

    @cached_property
    def uploads(self) -> UploadQueries:
        return UploadQueries(self.connection, self.dialect_name)

    @cached_property
    def datasets(self) -> DatasetQueries:
        return DatasetQueries(self.connection, self.dialect_name)

    @cached_property
    def job_reads(self) -> JobReadQueries:
        return JobReadQueries(self.connection, self.dialect_name)

    @cached_property
    def submission(self) -> SubmissionQueries:
        return SubmissionQueries(self.connection, self.dialect_name)

    @cached_property
    def garbage(self) -> GarbageQueries:
        return GarbageQueries(self.connection, self.dialect_name)

    @cached_property
    def fleets(self) -> Fleets:
        return Fleets(self.connection, self.dialect_name)

    @cached_property
    def machines(self) -> Machines:
        return Machines(self.connection, self.dialect_name)

    @cached_property
    def paces(self) -> Paces:
        return Paces(self.connection, self.dialect_name)

    @cached_property
    def gauges(self) -> GaugeQueries:
        return GaugeQueries(self.connection, self.dialect_name)

    @cached_property
    def spending(self) -> Spending:
        return Spending(self.connection, self.dialect_name)

    @cached_property
    def pausing(self) -> Pausing:
        return Pausing(self.connection, self.dialect_name)

    @cached_property
    def costs(self) -> CostQueries:
        return CostQueries(self.connection, self.dialect_name)

    @cached_property
    def forecasts(self) -> ForecastQueries:
        return ForecastQueries(self.connection, self.dialect_name)
