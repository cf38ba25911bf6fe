"""A database with transactions, as the use cases see it."""

from contextlib import AbstractContextManager
from typing import Protocol

from giornata.control.ports.ban_store import Bans
from giornata.control.ports.fleet_store import Fleets
from giornata.control.ports.gauges import GaugeQueries
from giornata.control.ports.machine_store import Machines
from giornata.control.ports.money_store import MoneyTransaction
from giornata.control.ports.pace_store import Paces
from giornata.control.ports.secret_store import Secrets
from giornata.control.ports.user_store import UserTransaction
from giornata.control.ports.work_store import WorkTransaction


class Transaction(WorkTransaction, UserTransaction, MoneyTransaction, Protocol):
    """Groups of queries that share one transaction."""

    @property
    def secrets(self) -> Secrets: ...
    @property
    def machines(self) -> Machines: ...
    @property
    def bans(self) -> Bans: ...
    @property
    def paces(self) -> Paces: ...
    @property
    def gauges(self) -> GaugeQueries: ...
    @property
    def fleets(self) -> Fleets: ...


class Store(Protocol):
    """Opens transactions. They are short, and never nested."""

    def begin(self) -> AbstractContextManager[Transaction]:
        """A write transaction: commits at the end, rolls back on any exception.

        Raises Unavailable when the database is busy for too long, full, or away.
        """

    def read(self) -> AbstractContextManager[Transaction]:
        """A read transaction: one snapshot, no writes."""

    def only_here(self, name: str) -> AbstractContextManager[bool]:
        """Whether this server may run the loop `name` now: one server at a time may."""

    def erase_replaced(self) -> None:
        """See that the database's files hold nothing of the signing key that was replaced. Raises Unavailable."""
