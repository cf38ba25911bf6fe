"""Every type of event in the history of a job, with the fields of its `data`."""

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
    JOB_IMPORTED = "job.imported"
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
    VALIDATION_READY = "validation.ready"
    PICTURES_READY = "pictures.ready"
    NOTICE = "notice"


MEANING: Mapping[EventType, str] = MappingProxyType(
    {
        EventType.JOB_SUBMITTED: "The job is in the queue. data: kind, retry_of",
        EventType.JOB_SUCCEEDED: "Every artifact is committed. data: step",
        EventType.JOB_FAILED: "The job failed and is not tried again. data: error, faults",
        EventType.JOB_CANCELED: "The owner canceled the job. A validation is canceled by the server when a newer one "
        "replaces it, or when its training job is stopped. data: by",
        EventType.JOB_EXPIRED: "The deadline of the job passed.",
        EventType.JOB_IMPORTED: "The job ended in another project and was imported. data: imported_from, state",
        EventType.JOB_REQUEUED: (
            "The job is queued again. data: resume_step, and alone_because if it shares no batch from now on"
        ),
        EventType.JOB_PAUSED: "The job waits until its budget is raised. "
        "data: budget, limit_micro_usd, spent_micro_usd, and month for a budget per month",
        EventType.JOB_RESUMED: "The job is in the queue again. data: resume_step",
        EventType.BUDGET_WARNING: "Four fifths of a budget are spent. "
        "data: budget, limit_micro_usd, spent_micro_usd, and month for a budget per month",
        EventType.ATTEMPT_STARTED: "A node took the job. data: node_id, machine_id, node_name, resume_step",
        EventType.ATTEMPT_FIRST_STEP: "The first step of the attempt is done. data: step",
        EventType.ATTEMPT_LAPSED: "The node sent no heartbeat for a whole lease.",
        EventType.ATTEMPT_RENEWED: "The node came back before another node took the job.",
        EventType.ATTEMPT_ENDED: "The attempt ended. data: reason, blame, message, step, exit_code, log_tail",
        EventType.CHECKPOINT_COMMITTED: "A checkpoint is stored and verified. "
        "data: step, size_bytes, sha256, and validation, the job that draws its sample images",
        EventType.CHECKPOINT_REJECTED: "The bytes of a checkpoint are lost; the one before it is used. "
        "data: step, message, found",
        EventType.ARTIFACT_COMMITTED: "A result is stored and verified. "
        "data: name, size_bytes, sha256, and validation, the job that drew it elsewhere",
        EventType.VALIDATION_READY: "The sample images of a step of the training job are there, as one file. data: "
        "step, name, sha256, and validation, the job that drew them elsewhere",
        EventType.PICTURES_READY: "Pictures of the order have ended. At most one a second. "
        "data: pictures, succeeded, failed, and place, up to which pictures have ended",
        EventType.NOTICE: "A notice of the workload or of the server. data: name, and the fields of the notice",
    }
)


class OperatorEvent(StrEnum):
    """Events that belong to no job, and that only webhooks tell. Stable names; part of the HTTP contract."""

    MACHINE_QUARANTINED = "machine.quarantined"
    FLEET_REFUSED = "fleet.refused"
    MODEL_DAMAGED = "model.damaged"
    WEBHOOK_TEST = "webhook.test"


OPERATOR_MEANING: Mapping[OperatorEvent, str] = MappingProxyType(
    {
        OperatorEvent.MACHINE_QUARANTINED: "A machine gets no more jobs of a kind. The owner of the machine hears of "
        "it: the operator's project, or the project whose own machine it is. data: machine_id, kind, reason",
        OperatorEvent.FLEET_REFUSED: "The provider of a fleet refused a request, and repeating it does not help. The "
        "operator's project hears of it, once for each new message. data: fleet, error",
        OperatorEvent.MODEL_DAMAGED: "The bytes of a model file had changed on a node's disk, and it was removed. "
        "Other nodes read theirs again before the next use. The owner of the machine hears of it. "
        "data: machine_id, node_id, sha256",
        OperatorEvent.WEBHOOK_TEST: "Somebody asked for a test of the webhook. Every webhook gets its own tests.",
    }
)
