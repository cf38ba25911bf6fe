"""Every type of event that a job's history can hold, with what its `data` says."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class EventType(StrEnum):
    """Stable names; part of the HTTP contract."""

    JOB_SUBMITTED = "job.submitted"
    JOB_SUCCEEDED = "job.succeeded"
    JOB_FAILED = "job.failed"
    JOB_CANCELED = "job.canceled"
    JOB_EXPIRED = "job.expired"
    JOB_REQUEUED = "job.requeued"
    JOB_PAUSED = "job.paused"
    JOB_RESUMED = "job.resumed"
    BUDGET_WARNING = "budget.warning"
    ATTEMPT_STARTED = "attempt.started"
    ATTEMPT_FIRST_STEP = "attempt.first_step"
    ATTEMPT_LAPSED = "attempt.lapsed"
    ATTEMPT_RENEWED = "attempt.renewed"
    ATTEMPT_ENDED = "attempt.ended"
    CHECKPOINT_COMMITTED = "checkpoint.committed"
    CHECKPOINT_REJECTED = "checkpoint.rejected"
    ARTIFACT_COMMITTED = "artifact.committed"
    NOTICE = "notice"


MEANING: Mapping[EventType, str] = MappingProxyType(
    {
        EventType.JOB_SUBMITTED: "The job is in the queue. data: kind, retry_of",
        EventType.JOB_SUCCEEDED: "Every artifact is committed. data: step",
        EventType.JOB_FAILED: "It will not be tried again. data: error, faults",
        EventType.JOB_CANCELED: "Its owner ended it. data: by",
        EventType.JOB_EXPIRED: "Its deadline passed.",
        EventType.JOB_REQUEUED: (
            "Another node will go on with it. data: resume_step, and alone_because if it shares no batch from now on"
        ),
        EventType.JOB_PAUSED: "It waits until its budget is raised. data: budget, limit_micro_usd, spent_micro_usd, "
        "and month for a budget per month",
        EventType.JOB_RESUMED: "It is in the queue again. data: resume_step",
        EventType.BUDGET_WARNING: "Four fifths are used. data: budget, limit_micro_usd, spent_micro_usd, "
        "and month for a budget per month",
        EventType.ATTEMPT_STARTED: "A node took it. data: node_id, machine_id, node_name, resume_step",
        EventType.ATTEMPT_FIRST_STEP: "The first step of the attempt is done. data: step",
        EventType.ATTEMPT_LAPSED: "The node fell silent for a whole lease.",
        EventType.ATTEMPT_RENEWED: "... and came back before anybody else took the job.",
        EventType.ATTEMPT_ENDED: "data: reason, blame, message, step, exit_code, log_tail",
        EventType.CHECKPOINT_COMMITTED: "data: step, size_bytes, sha256",
        EventType.CHECKPOINT_REJECTED: "Its bytes are lost; the one before is used. data: step, message, found",
        EventType.ARTIFACT_COMMITTED: "The attempt vouches for these bytes. data: name, size_bytes, sha256",
        EventType.NOTICE: "Said by the workload, or by the server. data: name, and what it says",
    }
)
