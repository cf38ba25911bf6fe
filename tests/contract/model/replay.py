"""A job's history, folded: what its events alone say of its state, its attempts and its checkpoints.

Nothing here is shared with the use cases but the names of the events: it is written down a second time on purpose.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ENDS = {"job.succeeded", "job.failed", "job.canceled", "job.expired"}


@dataclass(slots=True)
class ReplayedAttempt:
    """An attempt, as told."""

    number: int
    node_id: str
    machine_id: str
    started_at_ms: int
    start_step: int
    committed_step: int
    lapsed: bool = False
    reason: str | None = None
    ended_at_ms: int | None = None
    shared_fault: bool = False
    intervals: int = 1  # stretches of life; silence lies between them


@dataclass(slots=True)
class Saved:
    """A checkpoint, as told."""

    sha256: str
    attempt: int
    rejected: bool = False
    doubted_by: int | None = None


@dataclass(slots=True)
class ReplayedJob:
    """One job. `spec` is what was asked for; it never changes, and no event repeats it."""

    job_id: str
    spec: Mapping[str, Any]
    state: str = ""
    tries: dict[int, ReplayedAttempt] = field(default_factory=dict)
    saved: dict[int, Saved] = field(default_factory=dict)
    artifacts: dict[str, tuple[str, int]] = field(default_factory=dict)  # sha256, and who vouches for it
    retry_of: str | None = None
    ended_at_ms: int | None = None
    alone: bool = False  # whatever its spec allows
    forgotten: int = 0  # the step that it had committed, when its checkpoints were deleted after its end
    pinned: set[int] = field(default_factory=set)  # steps; no event tells of them
    lifted: list[tuple[int, str]] = field(default_factory=list)  # after so many attempts, the ban of this machine

    @property
    def committed_step(self) -> int:
        return max([self.forgotten, *(step for step, saved in self.saved.items() if not saved.rejected)])

    @property
    def live(self) -> ReplayedAttempt | None:
        alive = [one for one in self.tries.values() if one.reason is None]
        assert len(alive) <= 1, f"{self.job_id}: two attempts at once: {alive}"
        return alive[0] if alive else None

    def tell(self, event: Any, others: Mapping[str, "ReplayedJob"]) -> None:
        """One more event. Fails for one that cannot follow those before."""
        data = told_by(event)
        if event.type == "notice" and data["name"] in {"audited", "taken-back", "input-in-doubt"}:
            return  # whatever has become of the job since; the checker has taken back what is to be taken back
        assert self.state in {"", "queued", "running", "paused"}, f"{event.type} after {self.job_id} was {self.state}"
        assert (self.state == "") is (event.type == "job.submitted"), f"{event.type} of {self.job_id}"
        if event.type.startswith("job."):
            self._job(event, data, others)
        elif event.type == "attempt.started":
            self._started(event, data)
        elif event.type == "notice" and data["name"] == "ban-lifted":
            assert self.state == "queued", f"a ban of {self.job_id} was lifted while it was {self.state}"
            self.lifted += [(len(self.tries), machine_id) for machine_id in data["machine_ids"]]
        else:
            live = self.live
            assert live is not None, f"{event.type} of {self.job_id}, which nobody has"
            assert live.number == event.attempt_number, f"{event.type} by {event.attempt_number}, not {live}"
            self._along_the_way(live, event, data)

    def take_back(self, step: int, agreed: Saved | None) -> None:
        """An audit contradicts a machine of this job: what came behind the step is doubted, and the step is good. The
        row of a job that has ended goes on to say how far the job came.
        """
        if self.ended_at_ms is not None:
            self.forgotten = max(self.forgotten, self.committed_step)
        for later, saved in self.saved.items():
            saved.rejected = saved.rejected or later > step
        if agreed is not None:
            self.saved[step] = agreed

    def _job(self, event: Any, data: Any, others: Mapping[str, "ReplayedJob"]) -> None:
        if event.type == "job.submitted":
            self.state, self.retry_of = "queued", data["retry_of"]
            if self.retry_of is not None:
                earlier = others[self.retry_of]
                self.saved = {step: Saved(it.sha256, 0) for step, it in earlier.saved.items() if not it.rejected}
                self.alone = earlier.alone
            return
        assert self.live is None, f"{event.type} of {self.job_id} with {self.live}"
        if event.type in {"job.requeued", "job.paused"}:
            assert self.state in {"queued", "running"}, f"{event.type} of {self.job_id}, which was {self.state}"
            self.state = "queued" if event.type == "job.requeued" else "paused"
            assert data.get("resume_step", self.committed_step) == self.committed_step
            if data.get("alone_because"):
                assert not self.alone, f"{self.job_id} shared a batch after it was to run alone"
                self.alone = self.tries[event.attempt_number].shared_fault = True
            return
        if event.type == "job.resumed":
            assert self.state == "paused", f"{self.job_id} goes on that was {self.state}"
            assert data["resume_step"] == self.committed_step
            self.state = "queued"
            return
        assert event.type in ENDS
        self.state, self.ended_at_ms = event.type.removeprefix("job."), event.at_ms
        if self.state == "succeeded":
            ours = {name: of for name, of in self.artifacts.items() if of[1] == event.attempt_number}
            self.artifacts = ours

    def _started(self, event: Any, data: Any) -> None:
        assert self.state == "queued", f"{self.job_id} was handed out while {self.state}"
        assert self.live is None, f"{self.job_id} was handed out while {self.live} lived"
        number = event.attempt_number
        assert number == len(self.tries) + 1
        assert data["resume_step"] == self.committed_step
        step = data["resume_step"]
        self.tries[number] = ReplayedAttempt(number, data["node_id"], data["machine_id"], event.at_ms, step, step)
        self.state = "running"

    def _along_the_way(self, live: ReplayedAttempt, event: Any, data: Any) -> None:
        match event.type:
            case "attempt.lapsed":
                assert self.state == "running"
                self.state, live.lapsed = "queued", True
            case "attempt.renewed":
                assert self.state == "queued"
                self.state, live.lapsed, live.intervals = "running", False, live.intervals + 1
            case "attempt.ended":
                live.reason, live.ended_at_ms = data["reason"], max(event.at_ms, live.started_at_ms)
            case "checkpoint.committed":
                self.saved[data["step"]] = Saved(data["sha256"], live.number)
                live.committed_step = max(live.committed_step, data["step"])
                self._prune()
            case "checkpoint.rejected":
                self.saved[data["step"]].rejected = True
                self._lower(live)
            case "notice" if data["name"] == "checkpoint-doubted":
                self.saved[data["step"]].doubted_by = live.number
                self._lower(live)
            case "artifact.committed":
                self.artifacts[data["name"]] = (data["sha256"], live.number)
            case "attempt.first_step" | "notice" | "budget.warning" | "validation.ready":
                pass
            case other:
                raise AssertionError(f"an event that nobody knows: {other}")

    def _lower(self, live: ReplayedAttempt) -> None:
        """It begins at the best one that it could fetch."""
        fetched = [step for step, it in self.saved.items() if not it.rejected and it.doubted_by != live.number]
        best = max(fetched, default=0)
        live.start_step, live.committed_step = min(live.start_step, best), min(live.committed_step, best)

    def _prune(self) -> None:
        """The latest K usable ones stay, and those that N divides; a rejected one goes when they are all newer."""
        usable = sorted(step for step, saved in self.saved.items() if not saved.rejected)
        every = self.spec.get("checkpoints_keep_every")
        stay = set(usable[-(self.spec.get("checkpoints_keep_latest") or 2) :])
        stay |= {step for step in usable if every and step % every == 0}
        for step, saved in list(self.saved.items()):
            spare = step < min(stay, default=0) if saved.rejected else step not in stay
            if spare and step not in self.pinned:
                del self.saved[step]


def told_by(event: Any) -> Any:
    """The event's data."""
    return json.loads(event.data) if isinstance(event.data, str) else event.data
