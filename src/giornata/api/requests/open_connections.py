"""Bounds on connections that stay open: those of each key, and those of each project.

A stream, a request that waits, and bytes of a project that are on their way each hold a place in this process.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import State

from giornata.control.caller import Caller
from giornata.domain.errors import QuotaFault, TooMany
from giornata.protocol.project.admin import ROOT_PROJECT


class ConnectionQuota:
    """Counts the present holders of places. `what` names them in the refusal, and `setting` the bound."""

    def __init__(self, what: str, *, most: int, whose: str = "this key", setting: str = "") -> None:
        self._what, self._most, self._whose, self._setting = what, most, whose, setting
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, holder: str) -> Iterator[None]:
        """Hold a place for as long as this lasts. Raises TooMany with the limit, the use and what to do."""
        with self._lock:
            if self._taken[holder] >= self._most:
                raise self._refusal(self._taken[holder])
            self._taken[holder] += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken[holder] -= 1
                if not self._taken[holder]:
                    del self._taken[holder]

    def _refusal(self, used: int) -> TooMany:
        message = f"{self._whose} has {used} {self._what} open on this server, of {self._most}"
        hint = "close one, or try later"
        if not self._setting:
            return TooMany(f"{message}; {hint}")
        hint += f"; an operator sets {self._setting}"
        fault = QuotaFault(
            where="connections", message=message, hint=hint, quota=self._setting, limit=self._most, used=used
        )
        return TooMany(f"{message}; {hint}", quota=fault)


class ProjectConnections:
    """Places of projects: their streams, waiting requests, and bytes on their way. The operator's project has no
    bound: its nodes serve everybody.
    """

    def __init__(self, *, most: int) -> None:
        self._quota = ConnectionQuota(
            "connections", most=most, whose="this project", setting="max_connections_per_project"
        )

    @contextmanager
    def taken(self, project_id: str) -> Iterator[None]:
        """Hold a place of the project for as long as this lasts. Raises TooMany."""
        if project_id == ROOT_PROJECT:
            yield
            return
        with self._quota.taken(project_id):
            yield


@contextmanager
def counted(state: State, quota: ConnectionQuota, caller: Caller) -> Iterator[None]:
    """Hold a place of the caller's key in this quota, and one of its project. Raises TooMany.

    `state` is the app's.
    """
    with quota.taken(caller.key_id), state.project_connections.taken(caller.project_id):
        yield
