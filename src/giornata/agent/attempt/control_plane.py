"""The platform of a node for a job: the control plane over HTTP, under a lease."""

import contextlib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from giornata.agent.attempt.events import AttemptFailed, AttemptOutcome, Finished
from giornata.agent.attempt.leased_platform import STOP_UPLOADS_S, LeasedPlatform
from giornata.agent.attempt.platform import AttemptState
from giornata.agent.claiming import AgentDeps
from giornata.agent.transfer.log_shipper import LogShipper
from giornata.agent.transfer.uploader import AttemptUploader
from giornata.agent.work_dir import JobDir
from giornata.domain.errors import GiornataError
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import (
    ArtifactWritten,
    CachePut,
    CheckpointWritten,
    Notice,
    PictureFailed,
    PictureWritten,
    Progress,
    Start,
)
from giornata.protocol.node.work import Lease


class ControlPlane(LeasedPlatform):
    """Moves the bytes of one job's attempt by signed URLs (`giornata.agent.attempt.platform.Platform`)."""

    def __init__(
        self, lease: Lease, *, granted_at_s: float, job_dir: JobDir, state: AttemptState, deps: AgentDeps
    ) -> None:
        super().__init__(lease, granted_at_s=granted_at_s, state=state, deps=deps)
        self._lease, self._job_dir = lease, job_dir
        self._models = ExitStack()  # in use; the machine's store may evict them once it is closed
        self._log = LogShipper(deps.node, self._calls)
        self._uploader = AttemptUploader(
            node=deps.node,
            calls=self._calls,
            storage=deps.storage,
            post=state.events.put,
            monotonic_s=deps.monotonic_s,
            patience_s=deps.settings.transfer_patience_s,
            deliver_points=self._log.deliver_points,
        )

    # ---- see Platform ----

    def open(self) -> None:
        """Start to renew the lease; start the threads of the log and of the uploads."""
        super().open()
        self._log.start()
        self._uploader.start()

    def close(self) -> None:
        """End the threads; nothing more is written under the lease."""
        self._log.stop()
        super().close()
        self._uploader.stop(wait_s=STOP_UPLOADS_S)
        self._models.close()

    def prepare(self) -> Start:
        """Fetch the inputs, the base if the server has it, and the newest checkpoint that arrives whole."""
        lease = self._lease
        models = self._fetching.files(lease.files, self._job_dir, in_use=self._models)
        inputs = (*self._fetching.inputs(lease.inputs, self._job_dir), *models)
        return Start(
            attempt=lease.attempt_id,
            job=lease.job_id,
            kind=lease.kind,
            spec=lease.spec,
            directory=self._job_dir.work,
            inputs=inputs,
            resume=self._fetching.resume_point(lease.checkpoints, self._job_dir),
            mtbi_s=lease.mtbi_s,
            max_at_risk_s=lease.max_at_risk_s,
            hub_token=lease.hub_token,
            wandb_api_key=lease.wandb_api_key,
            joint_key=lease.joint_key,
        )

    def step(self, message: Progress) -> None:
        """Ship the metrics, and beat soon after the first step."""
        if message.metrics:
            self._log.metrics(message.step, message.metrics)
        super().step(message)

    def log_line(self, text: str) -> None:
        """Queue the line for the job's log on the server."""
        self._log.line(text)

    def stderr_line(self, text: str) -> None:
        """Ship the line, and keep it: it may explain a crash."""
        super().stderr_line(text)
        self._log.line(text)

    def notice(self, message: Notice) -> None:
        """Queue the notice behind the files that were announced before it."""
        self._uploader.notice(message)

    def upload(self, message: CheckpointWritten | ArtifactWritten | CachePut, path: Path) -> None:
        """Queue the file; a job is complete only with every artifact that was announced."""
        if isinstance(message, ArtifactWritten):
            self._state.progress.artifacts = (*self._state.progress.artifacts, message.name)
        self._uploader.file(message, path)

    def picture(self, message: PictureWritten | PictureFailed, path: Path | None) -> None:
        """Refuse the picture: a job's results are artifacts."""
        self._log.line(
            f"the engine announced picture {message.number} of {message.order_id} in a job that draws none"
        )
        if path is not None:
            path.unlink()

    def is_idle(self) -> bool:
        """Return True when the queue of uploads is empty."""
        return self._uploader.is_idle()

    def find_cache(self, key: str) -> Path | None:
        """Fetch what an earlier job of the project left under the key."""
        return self._fetching.cached(key, self._job_dir)

    def report(self, outcome: AttemptOutcome, *, tail: Sequence[str]) -> AttemptOutcome:
        """Send what is left of the log, and then the outcome."""
        self._log.stop()
        self._log.flush()
        if isinstance(outcome, AttemptFailed) and (blamed := self.blames_damage(outcome.reason, outcome.message)):
            outcome = AttemptFailed(Reason.NODE_DOWNLOAD, blamed)
        if isinstance(outcome, Finished):
            # No attempt comes after this one: what has not arrived by its end never does.
            with contextlib.suppress(GiornataError):
                self._own_calls.persist(lambda _: self._log.deliver_points(), until=self._report_by)
        return super().report(outcome, tail=tail)
