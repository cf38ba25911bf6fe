"""One of each thing that has a page of its own: a sweep, a grid, a pre-training run, a webhook, a job with files."""

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from giornata.pretrain.recipes import sdxl_tiny
from giornata.store import schema

JOB, ORDER, SWEEP, GRID, PRETRAINING, WEBHOOK = (
    "job_many97",
    "job_many98",
    "job_sweep",
    "job_grid",
    "job_pretraining",
    "webhook_many",
)
"""JOB is a training and ORDER an order of `page_data`; the others are made here."""
MANY = 250
"""Checkpoints, sheets and audits of JOB, deliveries of WEBHOOK, and steps of PRETRAINING."""
SWEPT = 12
SHA256 = "a" * 64
SIDE = 10
"""Values of each of the grid's two axes."""


def add_examples(connection: sa.Connection, project_id: str, *, ended: Sequence[int], at_ms: int) -> None:
    """Add one of each to a project that has the jobs of `page_data`; do nothing where JOB is not among them.

    `ended` are the numbers of jobs that have ended, with their attempts.
    """
    if int(JOB.removeprefix("job_many")) not in ended:
        return
    trained = [f"job_many{number}" for number in ended if number % 7][:SWEPT]
    swept = [
        {"job": each, "changes": {"rank": 4 + n}, "likely_cost_micro_usd": 5000} for n, each in enumerate(trained)
    ]
    config = json.loads(json.dumps(sdxl_tiny("s3://bucket/run").to_json()))
    made = [
        (SWEEP, "sweep", {"jobs": swept}),
        (GRID, "grid", _grid_spec()),
        (PRETRAINING, "pretrain", {"config": config}),
    ]
    shared = {"project_id": project_id, "state": "succeeded", "priority": 0, "labels": {}, "faults": [], "result": {}}
    shared |= {"created_at_ms": at_ms, "ended_at_ms": at_ms, "step": MANY, "total_steps": MANY}
    jobs = [shared | {"id": job_id, "name": kind, "kind": kind, "spec": spec} for job_id, kind, spec in made]
    connection.execute(schema.jobs.insert(), jobs)
    _add_grid(connection, project_id, at_ms)
    _add_files(connection, project_id, at_ms)
    _add_webhook(connection, project_id, at_ms)
    values = {"loss": 0.1, "images_per_s": 11.5, "mfu": 0.3, "samples": 16.0, "time_s": 1.4, "phase": 0}
    steps = [{"step": step, "attempt_number": 1, "values": values, "at_ms": at_ms} for step in range(MANY)]
    of_jobs = [each | {"job_id": job_id} for job_id in (JOB, PRETRAINING, *trained) for each in steps]
    connection.execute(schema.metrics.insert(), of_jobs)


def _grid_spec() -> dict[str, Any]:
    axes = [
        {"slot": "who", "values": [f"fox {n}" for n in range(SIDE)]},
        {"field": "guidance_scale", "values": [1 + n for n in range(SIDE)]},
    ]
    size = {"width": 512, "height": 512, "num_inference_steps": 10, "seed": 7}
    return {"model": {"name": "some/model"}, "prompt": "a {who}, watercolor", "axes": axes, **size}


def _add_grid(connection: sa.Connection, project_id: str, at_ms: int) -> None:
    cells = SIDE * SIDE
    order = {"order_id": GRID, "project_id": project_id, "priority": 0, "pictures": cells, "ended": cells}
    order |= {"told": cells, "told_at_ms": at_ms, "ends_turn": 0, "is_open": False}
    connection.execute(schema.picture_orders.insert(), order)
    shared = {"order_id": GRID, "project_id": project_id, "state": "succeeded", "batch_key": "b", "base_key": "b"}
    shared |= {"turn": 0, "priority": 0, "seed": 7, "pixel_steps": 1, "together": 8, "lease": "att_grid"}
    shared |= {"sha256": SHA256, "size_bytes": 300_000}
    drawn = [
        shared | {"number": n, "place": n + 1, "differs": {"prompt": f"a fox {n // SIDE}, watercolor"}}
        for n in range(cells)
    ]
    connection.execute(schema.pictures.insert(), drawn)
    terms = [
        {"order_id": GRID, "term": term, "project_id": project_id, "ordered_at_ms": at_ms} for term in ("", "fox")
    ]
    connection.execute(schema.order_terms.insert(), terms)


def _add_files(connection: sa.Connection, project_id: str, at_ms: int) -> None:
    """Give JOB many checkpoints, sheets and audits, all of the same bytes, which no storage has."""
    file = {"project_id": project_id, "sha256": SHA256, "size_bytes": 300_000, "created_at_ms": at_ms}
    connection.execute(schema.blobs.insert(), file | {"key": f"{project_id}/many"})
    attempt_id = JOB.replace("job", "att")
    steps = range(1, MANY + 1)
    checkpoint = file | {"job_id": JOB, "attempt_number": 1}
    connection.execute(schema.checkpoints.insert(), [checkpoint | {"step": step} for step in steps])
    sheet = file | {"job_id": JOB, "attempt_id": attempt_id, "media_type": "image/png"}
    connection.execute(schema.artifacts.insert(), [sheet | {"name": f"fox-samples-{step:08d}.png"} for step in steps])
    audit = {"job_id": JOB, "project_id": project_id, "attempt_id": attempt_id, "attempt_number": 1}
    audit |= {"machine_id": "machine-1", "fleet": "", "device": "", "versions": {}, "runs": [], "state": "confirmed"}
    audit |= {"claimed_sha256": SHA256, "created_at_ms": at_ms, "decided_at_ms": at_ms}
    stretches = [{"id": f"audit_{step}", "from_step": step - 1, "to_step": step} for step in steps]
    connection.execute(schema.audits.insert(), [audit | each for each in stretches])


def _add_webhook(connection: sa.Connection, project_id: str, at_ms: int) -> None:
    webhook = {"id": WEBHOOK, "project_id": project_id, "format": "standard", "events": ["*"], "sealed": ""}
    webhook |= {"target": "https://hooks.example/many", "daily_digest": False, "enabled": False}
    webhook |= {"disabled_because": "it is an example", "begins_after": 0, "created_at_ms": at_ms}
    connection.execute(schema.webhooks.insert(), webhook)
    sent = {"webhook_id": WEBHOOK, "chain": JOB, "job_id": JOB, "type": "job.submitted", "body": "{}", "error": ""}
    sent |= {"state": "delivered", "tries": 1, "due_at_ms": at_ms, "status": 200, "created_at_ms": at_ms}
    deliveries = [sent | {"event_id": f"event_{n}", "ended_at_ms": at_ms} for n in range(MANY)]
    connection.execute(schema.webhook_deliveries.insert(), deliveries)
