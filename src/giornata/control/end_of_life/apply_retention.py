"""The loop that takes what projects keep for a limited time, when that time is over.

It takes some rows in a transaction, and then their bytes. A server that dies in between leaves bytes that nothing
refers to, which the collector finds.
"""

from collections import Counter
from dataclasses import dataclass, field

from giornata.control.context import Context
from giornata.control.end_of_life.remove_bytes import Freed, remove_bytes
from giornata.domain.files.retention import KeptClass, ended_before_ms

ROWS_AT_ONCE = 2_000
MOST_STEPS = 200
"""Transactions for one class of one project. The next turn goes on."""


@dataclass(slots=True)
class RetentionReport:
    """The rows that were taken, by class, and what storage does not have any more of each."""

    rows: Counter[KeptClass] = field(default_factory=Counter)
    freed_by_class: dict[KeptClass, Freed] = field(default_factory=dict)

    @property
    def freed(self) -> Freed:
        """The objects of all classes."""
        return sum(self.freed_by_class.values(), Freed())

    def __bool__(self) -> bool:
        return any(self.rows.values())

    def __str__(self) -> str:
        taken = ", ".join(f"{kept} {count}" for kept, count in self.rows.items() if count)
        return f"{taken}; {self.freed.objects} objects with {self.freed.size_bytes} bytes"


def apply_retention(ctx: Context) -> RetentionReport:
    """Take what is older than its project keeps it. Nothing of a job that has not ended, and nothing that is pinned.

    Raises Unavailable; repeat it later.
    """
    with ctx.store.read() as tx:
        projects = tx.retention.all_projects()
    report = RetentionReport()
    for project_id, retention in projects.items():
        for kept, days in retention.items():
            _take_class(ctx, project_id, kept, days, report)
    return report


def _take_class(ctx: Context, project_id: str, kept: KeptClass, days: int, report: RetentionReport) -> None:
    now_ms = ctx.clock.now_ms()
    before_ms = ended_before_ms(days, now_ms=now_ms)
    for _ in range(MOST_STEPS):
        with ctx.store.begin() as tx:
            taken = tx.retention.take(project_id, kept, before_ms=before_ms, limit=ROWS_AT_ONCE)
        if not taken.rows:
            return
        report.rows[kept] += taken.rows
        freed = remove_bytes(ctx, project_id, taken, asked_before_ms=before_ms)
        report.freed_by_class[kept] = report.freed_by_class.get(kept, Freed()) + freed
