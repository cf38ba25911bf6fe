"""The control plane that ships, called as the HTTP layer calls it, and the messages of modeled nodes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from giornata.control.attempts.claiming.claim import Asked, claim_each
from giornata.control.attempts.commit import commit_artifact, commit_checkpoint
from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.reported_ends import fail, release
from giornata.control.attempts.heartbeat import Beat, heartbeat_each
from giornata.control.context import Context
from giornata.control.fleet_loops import fleet_loops
from giornata.control.loops import DEFAULT_SCHEDULE, Loop, Loops
from giornata.domain.errors import Conflict, Forbidden, LeaseLost
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import (
    Claim,
    ClaimReply,
    CommitArtifact,
    CommitCheckpoint,
    CompleteAttempt,
    FailAttempt,
    Heartbeat,
    Lease,
    NodeInfo,
    Order,
    ReleaseAttempt,
)
from giornata.protocol.specs import CANARY_KIND, model_key
from giornata.simulate.agenda import Agenda
from giornata.simulate.installation import NODE_CALLER, blob_of

KINDS = ("train", CANARY_KIND)
# Loops that look at every node cost more to play, and turn so many times more seldom than the slowest of the others.
LARGE = 4
VRAM_BYTES = 24 * 2**30
RESULT = "pytorch_lora_weights.safetensors"


class ServerAway(Exception):
    """The server does not answer."""


class HeartbeatAnswer(Enum):
    """The server's answer to a heartbeat."""

    GO_ON = auto()
    RELEASE = auto()  # give the job back and stay
    LEAVE = auto()  # give the job back and go
    LOST = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A job for a node. `every` is the steps between checkpoints; None: by their cost and the fleet's losses."""

    job_id: str
    machine_id: str
    attempt_id: str
    attempt: int
    start_step: int
    total_steps: int
    every: int | None
    lease_s: float
    mtbi_s: float
    max_at_risk_s: float
    model: str
    is_trial: bool = False  # the platform's own: a canary


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """A node's request for work. `number` and `request` count nodes, and the answered requests of a node."""

    number: int
    request: int
    node_id: str
    machine_id: str
    container_id: str
    fleet: str
    price_micro_usd_per_hour: int
    warm: str  # the model that its engine holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """The answer to a claim without a job. `leave`: no job will come."""

    reason: str
    leave: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedProgress:
    """The content of a node's heartbeat for its attempt."""

    attempt_id: str
    job_id: str
    step: int
    phase: str
    held: tuple[str, ...]


ANSWERS = {
    Order.CONTINUE: HeartbeatAnswer.GO_ON,
    Order.RELEASE: HeartbeatAnswer.RELEASE,
    Order.DRAIN: HeartbeatAnswer.LEAVE,
}


class SimulatedControlPlane:
    """Answers modeled nodes by `giornata.control`. `away` stops the server and its loops.

    Every call raises ServerAway while the server is away. An end that returns False means a lost lease.
    """

    def __init__(
        self, ctx: Context, agenda: Agenda, *, slowest_loop_s: float, after_work: Callable[[], None]
    ) -> None:
        self._ctx, self._agenda, self._after_work = ctx, agenda, after_work
        self.away = False
        self.project_of: dict[str, str] = {}
        self.calls = dict.fromkeys(("claims", "beats", "commits", "ends"), 0)
        schedule = (*DEFAULT_SCHEDULE, *fleet_loops(ctx.fleets))
        self.loops = Loops(ctx, schedule, monotonic_s=lambda: agenda.now_ms() / 1000, after_work=after_work)
        for loop in schedule:
            self._turn(loop, max(loop.every_s, slowest_loop_s * (LARGE if _looks_at_all(loop) else 1)))

    def _turn(self, loop: Loop, every_s: float) -> None:
        def turn() -> None:
            self._agenda.after(every_s, turn)
            if not self.away:
                self.loops.run_once(loop)

        self._agenda.after(every_s, turn)

    # ---- the plane ----

    def claim(self, requests: Sequence[ClaimRequest]) -> list[Grant | Nothing]:
        self._present()
        self.calls["claims"] += len(requests)
        asked = [Asked(caller=NODE_CALLER, claim=_claim(each)) for each in requests]
        replies = claim_each(self._ctx, asked)
        return [_answer(reply, each.machine_id) for reply, each in zip(replies, requests, strict=True)]

    def beat(self, beats: Sequence[SimulatedProgress]) -> list[HeartbeatAnswer]:
        self._present()
        self.calls["beats"] += len(beats)
        replies = heartbeat_each(self._ctx, [Beat(attempt_id=each.attempt_id, said=_said(each)) for each in beats])
        return [HeartbeatAnswer.LOST if isinstance(each, LeaseLost) else ANSWERS[each.order] for each in replies]

    def commit(self, grant: Grant, step: int) -> bool:
        self._present()
        self.calls["commits"] += 1
        blob = blob_of(self.project_of[grant.job_id])
        report = CommitCheckpoint(step=step, sha256=blob.sha256, size_bytes=blob.size_bytes)
        return _accepted(lambda: commit_checkpoint(self._ctx, grant.attempt_id, report))

    def complete(self, grant: Grant) -> bool:
        self._present()
        self.calls["ends"] += 1
        if grant.is_trial:
            report = CompleteAttempt(step=grant.total_steps)
            return _accepted(lambda: complete(self._ctx, grant.attempt_id, report))
        blob = blob_of(self.project_of[grant.job_id])
        result = CommitArtifact(name=RESULT, sha256=blob.sha256, size_bytes=blob.size_bytes)
        report = CompleteAttempt(artifacts=(RESULT,), step=grant.total_steps)

        def both() -> None:
            commit_artifact(self._ctx, grant.attempt_id, result)
            complete(self._ctx, grant.attempt_id, report)

        return _accepted(both)

    def fail(self, grant: Grant, reason: Reason, step: int) -> bool:
        self._present()
        self.calls["ends"] += 1
        report = FailAttempt(reason=reason, message="modeled", step=step)
        return self._worth_waking(_accepted(lambda: fail(self._ctx, grant.attempt_id, report)))

    def release(self, grant: Grant, step: int) -> bool:
        self._present()
        self.calls["ends"] += 1
        report = ReleaseAttempt(reason=Reason.RELEASED, message="as it was told", step=step)
        return self._worth_waking(_accepted(lambda: release(self._ctx, grant.attempt_id, report)))

    # ---- inside ----

    def _present(self) -> None:
        if self.away:
            raise ServerAway

    def _worth_waking(self, accepted: bool) -> bool:
        if accepted:
            self._after_work()
        return accepted


def _looks_at_all(loop: Loop) -> bool:
    return loop.name in {"bans", "reap", "stragglers"}


def _accepted(call: Callable[[], object]) -> bool:
    try:
        call()
    except LeaseLost:
        return False
    return True


def _claim(asked: ClaimRequest) -> Claim:
    info = NodeInfo(
        node_id=asked.node_id,
        machine_id=asked.machine_id,
        name=asked.container_id,
        fleet=asked.fleet,
        instance_id=asked.container_id,
        device="NVIDIA GeForce RTX 4090",
        vram_bytes=VRAM_BYTES,
        price_micro_usd_per_hour=asked.price_micro_usd_per_hour,
    )
    held = (asked.warm,) if asked.warm else ()
    request_id = f"request-{asked.number}-{asked.request + 1}"
    return Claim(request_id=request_id, node=info, kinds=KINDS, held_models=held)


def _answer(reply: ClaimReply | Conflict | Forbidden, machine_id: str) -> Grant | Nothing:
    if isinstance(reply, Conflict | Forbidden):
        raise reply
    if reply.lease is None:
        return Nothing(reason=reply.reason or "", leave=reply.drain)
    return _grant(reply.lease, machine_id)


def _grant(lease: Lease, machine_id: str) -> Grant:
    trial = lease.kind == CANARY_KIND
    every = lease.spec.get("checkpointing_steps", "auto")
    return Grant(
        job_id=lease.job_id,
        machine_id=machine_id,
        attempt_id=lease.attempt_id,
        attempt=lease.attempt,
        start_step=lease.checkpoints[0].step if lease.checkpoints else 0,
        total_steps=lease.spec["steps" if trial else "max_train_steps"],
        is_trial=trial,
        every=None if every == "auto" else every,
        lease_s=lease.lease_s,
        mtbi_s=lease.mtbi_s,
        max_at_risk_s=lease.max_at_risk_s,
        model="" if trial else model_key(lease.kind, lease.spec),
    )


def _said(progress: SimulatedProgress) -> Heartbeat:
    # No metrics: nothing that decides anything reads them.
    return Heartbeat(step=progress.step, phase=progress.phase, held_models=progress.held)
