"""Queries that write jobs which ended elsewhere."""

from collections.abc import Sequence

import sqlalchemy as sa

from giornata.control.ports import import_store
from giornata.control.ports.import_store import ArtifactToImport, CheckpointToImport, LineToImport, MetricToImport
from giornata.control.ports.records import JobRecord
from giornata.domain.job import IMPORTED_FROM
from giornata.store.database.rows import Queries, insert_for
from giornata.store.jobs.submission import INHERITED
from giornata.store.schema import artifacts as artifacts_table
from giornata.store.schema import attempts, jobs, logs
from giornata.store.schema import checkpoints as checkpoints_table
from giornata.store.schema import metrics as metrics_table

ELSEWHERE = "imported"
"""Stands for the node and the machine of an attempt that another installation made."""


class ImportedJobs(Queries, import_store.ImportedJobs):
    def find(self, project_id: str, imported_from: str) -> str | None:
        mine = (jobs.c.project_id == project_id) & jobs.c.deleted_at_ms.is_(None)
        same = jobs.c.labels[IMPORTED_FROM].as_string() == imported_from
        found: str | None = self._connection.scalar(sa.select(jobs.c.id).where(mine, same).limit(1))
        return found

    def add_results(
        self,
        job: JobRecord,
        *,
        attempt_id: str,
        checkpoints: Sequence[CheckpointToImport],
        artifacts: Sequence[ArtifactToImport],
        at_ms: int,
    ) -> None:
        owner = {"job_id": job.id, "project_id": job.project_id, "created_at_ms": at_ms}
        if checkpoints:
            rows = [
                {
                    **owner,
                    "step": each.step,
                    "attempt_number": INHERITED,
                    "sha256": each.sha256,
                    "size_bytes": each.size_bytes,
                }
                for each in checkpoints
            ]
            self._connection.execute(sa.insert(checkpoints_table), rows)
        if artifacts:
            self._add_attempt(job, attempt_id)
            rows = [
                {
                    **owner,
                    "attempt_id": attempt_id,
                    "name": each.name,
                    "sha256": each.sha256,
                    "size_bytes": each.size_bytes,
                    "media_type": each.media_type,
                }
                for each in artifacts
            ]
            self._connection.execute(sa.insert(artifacts_table), rows)

    def _add_attempt(self, job: JobRecord, attempt_id: str) -> None:
        instants = ("started_at_ms", "renewed_at_ms", "lease_expires_at_ms", "ended_at_ms")
        row = {
            "id": attempt_id,
            "job_id": job.id,
            "number": 1,
            "node_id": ELSEWHERE,
            "machine_id": ELSEWHERE,
            "node_name": ELSEWHERE,
            "request_id": attempt_id,
            "price_micro_usd_per_hour": 0,
            "start_step": job.step,
            "last_step": job.step,
            "committed_step": job.committed_step,
            **dict.fromkeys(instants, job.ended_at_ms),
        }
        self._connection.execute(sa.insert(attempts), [row])

    def add_history(self, job_id: str, *, metrics: Sequence[MetricToImport], lines: Sequence[LineToImport]) -> None:
        points = [
            {
                "job_id": job_id,
                "step": each.step,
                "attempt_number": each.attempt_number,
                "values": dict(each.values),
                "at_ms": each.at_ms,
            }
            for each in metrics
        ]
        texts = [
            {
                "job_id": job_id,
                "attempt_number": each.attempt_number,
                "number": each.number,
                "line": each.line,
                "at_ms": each.at_ms,
            }
            for each in lines
        ]
        for table, rows in ((metrics_table, points), (logs, texts)):
            if rows:
                self._connection.execute(insert_for(self._dialect_name, table).on_conflict_do_nothing(), rows)
