"""The HTTP calls of sweeps, training jobs that differ in some fields of one spec, and of comparisons."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from giornata.client.calls.operator_calls import quoted
from giornata.client.connection import LONG_TIMEOUT, Connection
from giornata.protocol.sweeps import Comparison, SubmitSweep, Sweep


class SweepCalls:
    """The part of `giornata.client.client.Client` that is about sweeps."""

    _connection: Connection

    def submit_sweep(
        self,
        spec: Mapping[str, Any],
        *,
        grid: Mapping[str, Sequence[Any]] | None = None,
        changes: Sequence[Mapping[str, Any]] = (),
        name: str | None = None,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        deadline_s: int | None = None,
        budget_micro_usd: int | None = None,
        min_vram_bytes: int | None = None,
        idempotency_key: str | None = None,
    ) -> Sweep:
        """Submit a training job for each combination of the grid's values, or for each of the changes.

        `budget_micro_usd` is for all of them together. Raises InvalidInput with every fault of every job.
        """
        body = SubmitSweep(
            spec=dict(spec),
            grid={field: tuple(values) for field, values in (grid or {}).items()},
            changes=tuple(dict(change) for change in changes),
            name=name,
            priority=priority,
            labels=dict(labels or {}),
            deadline_s=deadline_s,
            budget_micro_usd=budget_micro_usd,
            min_vram_bytes=min_vram_bytes,
        )
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return self._connection.call("POST", "/v1/sweeps", Sweep, body=body, headers=headers, timeout=LONG_TIMEOUT)

    def get_sweep(self, job_id: str) -> Sweep:
        """Return a sweep, with what differs and what came of it for each of its jobs."""
        return self._connection.call("GET", f"/v1/sweeps/{quoted(job_id)}", Sweep)

    def compare_jobs(self, job_ids: Sequence[str]) -> Comparison:
        """Return training jobs side by side: what differs in their specs, and what came of each. Raises NotFound."""
        return self._connection.call("GET", "/v1/jobs:compare", Comparison, params={"job": list(job_ids)})
