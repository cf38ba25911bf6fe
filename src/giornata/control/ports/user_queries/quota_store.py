"""Queries for quotas of projects: the limits, and what is counted against them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from giornata.domain.rate_limit import RequestCounts, ServerCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedUse:
    """The use that a project makes of everything that is limited, but the bytes of its pictures.

    `pictures` are those ordered since an instant; `blob_bytes` include uploads of users that are not complete.
    """

    running_jobs: int
    queued_jobs: int
    open_orders: int
    pictures: int
    blob_bytes: int


class QuotaQueries(Protocol):
    """Queries for limits and their use. Jobs for one machine only are the platform's own, and
    are not counted; nor are jobs that the platform pays for, such as the retry of a suspect one.
    """

    def set(self, project_id: str, limits: Mapping[str, Any]) -> bool:
        """Set these fields of `giornata.domain.billing.quotas.Quotas`; False when there is no such project."""

    def ceilings(self) -> Mapping[str, int]:
        """Return how many jobs may run at a time, of each project that has such a limit."""

    def running(self, project_ids: Collection[str] | None = None) -> Mapping[str, int]:
        """Return the number of running jobs of these projects, or of all, without orders of pictures and without
        sweeps, whose jobs are counted. A project that runs none is left out.
        """

    def hold_running(self, project_ids: Collection[str]) -> Collection[str]:
        """Hold the numbers of these projects' running jobs until the transaction ends; return the projects that are
        held. Others are held by a claim of another server just now. Nobody waits.
        """

    def counted(self, project_id: str, *, since_ms: int) -> CountedUse:
        """Return all counts of the project in one statement, with the pictures of orders made since then."""

    def queued(self, project_id: str) -> int:
        """Return the number of the project's queued jobs and orders."""

    def open_orders(self, project_id: str) -> int:
        """Return the number of the project's orders with pictures that have not ended."""

    def pictures_since(self, project_id: str, *, since_ms: int) -> int:
        """Return the number of pictures of all orders that the project made since then, also of deleted ones."""

    def is_trained(self, project_id: str, sha256: str) -> bool:
        """Return True when these bytes are a checkpoint or a result of one of the project's jobs."""

    def blob_bytes(self, project_id: str) -> int:
        """Return the bytes of the project's blobs, and of the uploads of users that are not complete."""

    def picture_bytes(self, project_id: str) -> int:
        """Return the bytes of the pictures that were drawn for the project. Reads all of its pictures."""

    def exchange_requests(self, server_id: str, counts: RequestCounts, *, at_ms: int) -> Mapping[str, ServerCounts]:
        """Replace the server's counts of requests; return those of the other servers, by their ids. Counts that are
        older than a minute are deleted. One statement, on PostgreSQL only: SQLite has one server.
        """

    def forget_requests(self, server_id: str) -> None:
        """Delete the counts of the server."""
