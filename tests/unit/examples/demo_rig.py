"""Jobs, attempts and nodes in the form of the server's answers, for the tests of the demo."""

from datetime import UTC, datetime, timedelta
from typing import Any

from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.events import EventType
from giornata.protocol.jobs import Attempt, Event, Job, JobUrls
from giornata.protocol.project.admin import Node, NodeState

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def attempt(number: int = 1, node: str = "local-0", **fields: Any) -> Attempt:
    known = {
        "id": f"att_{number}",
        "node_id": f"id of {node}",
        "machine_id": node,
        "node_name": node,
        "started_at": NOON,
        "lease_expires_at": NOON + timedelta(seconds=5),
    }
    return Attempt(**(known | fields), number=number)


def ended(number: int = 1, node: str = "local-0", **fields: Any) -> Attempt:
    return attempt(number, node, **({"ended_at": NOON, "reason": Reason.LEASE_EXPIRED, "lapsed": True} | fields))


def job(name: str, *attempts: Attempt, state: JobState = JobState.RUNNING, **fields: Any) -> Job:
    links = dict.fromkeys(JobUrls.model_fields, "/")
    known = {
        "id": f"job_{name}",
        "project_id": "default",
        "kind": "train",
        "spec": {},
        "priority": 0,
        "labels": {},
        "created_at": NOON,
        "total_steps": 400,
        "urls": JobUrls(**links),
    }
    return Job(**(known | fields), name=name, state=state, attempts=attempts)


def node(name: str = "local-0", **fields: Any) -> Node:
    known = {
        "id": f"id of {name}",
        "machine_id": name,
        "fleet": "local",
        "state": NodeState.BUSY,
        "job_ids": (),
        "pid": 100,
        "engine_pid": 101,
        "first_seen_at": NOON,
        "last_seen_at": NOON,
    }
    return Node(**(known | fields), name=name)


def event(kind: EventType, number: int, **data: Any) -> Event:
    return Event(id=number, job_id="job_1", type=kind, at=NOON, attempt=number, data=data)
