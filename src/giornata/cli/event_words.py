"""Events as sentences."""

from collections.abc import Callable, Mapping
from textwrap import shorten
from types import MappingProxyType
from typing import Any

from giornata.cli.words import size
from giornata.domain.money import format_usd
from giornata.domain.reasons import Blame
from giornata.protocol.events import EventType
from giornata.protocol.jobs import Event

Data = Mapping[str, Any]

LONGEST_MESSAGE = 200


def _ended(data: Data) -> str:
    words = f"ended: {data.get('reason')}"
    # The job's own fault ends the job, and the next line says it all.
    if not data.get("message") or data.get("blame") == Blame.JOB:
        return words
    return f"{words}, {shorten(data['message'], LONGEST_MESSAGE, placeholder=' …')}"


def _requeued(data: Data) -> str:
    words = f"back in the queue, to go on from step {data.get('resume_step', 0)}"
    return f"{words}, alone from now on: {data['alone_because']}" if data.get("alone_because") else words


def _budget(data: Data) -> str:
    spent, limit = (format_usd(int(data.get(name, 0))) for name in ("spent_micro_usd", "limit_micro_usd"))
    month = f" for {data['month']}" if data.get("month") else ""
    return f"{spent} of the {data.get('budget')}'s {limit}{month} are spent"


def _notice(data: Data) -> str:
    if data.get("name") == "ban-lifted":
        machines = ", ".join(map(str, data.get("machine_ids", ())))
        return f"may go back to {machines}: {data.get('message')}"
    details = ", ".join(f"{key} {value}" for key, value in data.items() if key != "name")
    return f"notice: {data.get('name')}" + (f" ({details})" if details else "")


SENTENCES: Mapping[str, Callable[[Data], str]] = MappingProxyType(
    {
        EventType.JOB_SUBMITTED: lambda data: (
            "submitted" + (f", goes on from {data['retry_of']}" if data.get("retry_of") else "")
        ),
        EventType.JOB_SUCCEEDED: lambda data: f"succeeded at step {data.get('step')}",
        EventType.JOB_FAILED: lambda data: f"failed: {data.get('error')}",
        EventType.JOB_CANCELED: lambda _: "canceled",
        EventType.JOB_EXPIRED: lambda _: "expired: its deadline passed",
        EventType.JOB_REQUEUED: _requeued,
        EventType.JOB_PAUSED: lambda data: f"paused: {_budget(data)}",
        EventType.JOB_RESUMED: lambda data: f"in the queue again, to go on from step {data.get('resume_step', 0)}",
        EventType.BUDGET_WARNING: lambda data: f"warning: {_budget(data)}",
        EventType.ATTEMPT_STARTED: lambda data: (
            f"taken by {data.get('node_name')}, from step {data.get('resume_step')}"
        ),
        EventType.ATTEMPT_FIRST_STEP: lambda data: f"first step done ({data.get('step')})",
        EventType.ATTEMPT_LAPSED: lambda _: "⚡ the node fell silent; its lease ran out",
        EventType.ATTEMPT_RENEWED: lambda _: "the node is back",
        EventType.ATTEMPT_ENDED: _ended,
        EventType.CHECKPOINT_COMMITTED: lambda data: (
            f"checkpoint {data.get('step')} is safe ({size(int(data.get('size_bytes', 0)))})"
        ),
        EventType.CHECKPOINT_REJECTED: lambda data: (
            f"checkpoint {data.get('step')} is damaged; the one before is used"
        ),
        EventType.ARTIFACT_COMMITTED: lambda data: (
            f"result {data.get('name')} ({size(int(data.get('size_bytes', 0)))})"
        ),
        EventType.NOTICE: _notice,
    }
)


def sentence(event: Event) -> str:
    """`14:03:22  #2  taken by local-1, from step 120`."""
    what = SENTENCES[event.type](event.data) if event.type in SENTENCES else event.type
    attempt = f"#{event.attempt}" if event.attempt is not None else ""
    return f"{event.at.astimezone():%H:%M:%S}  {attempt:<3} {what}"
