"""The Python SDK: everything that the HTTP API can do, typed, retried, verified."""

import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx

from giornata.client.calls.audit_log_calls import AuditLogCalls
from giornata.client.calls.end_of_life_calls import EndOfLifeCalls
from giornata.client.calls.gallery_calls import GalleryCalls
from giornata.client.calls.generation_calls import GenerationCalls
from giornata.client.calls.model_calls import ModelCalls
from giornata.client.calls.operator_calls import quoted
from giornata.client.calls.people_calls import PeopleCalls
from giornata.client.calls.project_calls import ProjectCalls
from giornata.client.calls.project_transfer_calls import ProjectTransferCalls
from giornata.client.calls.sweep_calls import SweepCalls
from giornata.client.calls.webhook_calls import WebhookCalls
from giornata.client.connection import LONG_TIMEOUT, Connection
from giornata.client.follow import follow
from giornata.client.retry import Backoff
from giornata.client.storage.downloads import download_artifacts, download_file
from giornata.client.storage.training_folder import TrainingFolder, read_training_folder
from giornata.client.storage.uploads import Progress, UploadedFile, local_files, upload
from giornata.client.trust import trusted
from giornata.domain.errors import NotFound, Unavailable
from giornata.domain.jobs.job import STANDS_STILL, JobState
from giornata.pictures.folder import CAPTION_ENDING
from giornata.protocol.jobs import (
    Artifact,
    ArtifactPage,
    ChangeJob,
    Checkpoint,
    CheckpointPage,
    ContinueJob,
    Estimate,
    Event,
    EventPage,
    Job,
    JobPage,
    JobPart,
    LogLine,
    LogPage,
    MetricPage,
    MetricPoint,
    SubmitJob,
)
from giornata.protocol.provenance import ProvenanceKey, SignedProvenance
from giornata.protocol.uploads import CreateDataset, Dataset, DatasetItem, DatasetPage

PAGE = 500
LONGEST_MARK = 6
"""Of a job's id, so many last characters tell its files from those of another job with the same name."""
KEPT_CHECKPOINTS = (
    "A job keeps its latest checkpoints (checkpoints_keep_latest, by default 2). To keep chosen steps, submit "
    "it with: --set checkpoints_keep_every=500"
)


class Client(
    AuditLogCalls,
    EndOfLifeCalls,
    GenerationCalls,
    GalleryCalls,
    ModelCalls,
    PeopleCalls,
    ProjectCalls,
    ProjectTransferCalls,
    SweepCalls,
    WebhookCalls,
):
    """A server, seen with one key.

    Every method raises the classes of `giornata.domain.errors`. Calls that may be repeated are, on connection
    errors and on answers that say so; `submit` always may. Use as a context manager, or `close` it; an `http` that
    was passed in stays open. Safe to use from several threads.
    """

    def __init__(
        self, base_url: str, api_key: str, *, http: httpx.Client | None = None, backoff: Backoff | None = None
    ) -> None:
        self._own = http is None
        self._http = http if http is not None else httpx.Client(verify=trusted())
        self._connection = Connection(base_url, api_key, http=self._http, backoff=backoff or Backoff())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that this client opened."""
        if self._own:
            self._http.close()

    # ---- data ---------------------------------------------------------------------------------------------

    def upload_files(self, paths: Iterable[Path], progress: Progress | None = None) -> tuple[UploadedFile, ...]:
        """Bring the project to have these files; what it has already is not sent again."""
        return upload(self._connection, local_files(list(paths)), progress=progress)

    def create_dataset(self, items: Sequence[DatasetItem], *, labels: Mapping[str, str] | None = None) -> Dataset:
        """Name a set of uploaded pictures. The server looks at every one; all faults come at once."""
        body = CreateDataset(items=tuple(items), labels=dict(labels or {}))
        return self._connection.call("POST", "/v1/datasets", Dataset, body=body, timeout=LONG_TIMEOUT)

    def dataset_from_folder(
        self,
        folder: Path,
        instance_prompt: str | None = None,
        progress: Progress | None = None,
        *,
        masks: bool = False,
        caption_extension: str = CAPTION_ENDING,
    ) -> Dataset:
        """Check the folder, send what is missing, and make the dataset. `masks`: use those beside the pictures, for a
        job with masked_loss. `caption_extension`: ending of the caption files.

        Raises InvalidInput with every fault of the folder and of all pictures, before a byte is sent.
        """
        with tempfile.TemporaryDirectory(prefix="giornata-masks-") as copies:
            into = Path(copies) if masks else None
            read = read_training_folder(
                folder, instance_prompt=instance_prompt, masks_into=into, caption_ending=caption_extension
            )
            return self.send_folder(read, progress)

    def send_folder(self, folder: TrainingFolder, progress: Progress | None = None) -> Dataset:
        """Send what is missing of a folder that has been read, and make the dataset."""
        upload(self._connection, folder.files, progress=progress)
        return self.create_dataset(folder.items)

    def get_dataset(self, dataset_id: str) -> Dataset:
        """Return one dataset with its items."""
        return self._get(f"/v1/datasets/{quoted(dataset_id)}", Dataset)

    def datasets(self) -> Iterator[Dataset]:
        """All datasets, newest first, without their items."""
        return self._pages("/v1/datasets", DatasetPage)

    # ---- jobs ---------------------------------------------------------------------------------------------

    def submit(
        self,
        spec: Mapping[str, Any],
        *,
        kind: str = "train",
        name: str | None = None,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        deadline_s: int | None = None,
        budget_micro_usd: int | None = None,
        min_vram_bytes: int | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Ask for a job. However often the request has to be repeated, it makes one job."""
        body = SubmitJob(
            kind=kind,
            spec=dict(spec),
            name=name,
            priority=priority,
            labels=dict(labels or {}),
            deadline_s=deadline_s,
            budget_micro_usd=budget_micro_usd,
            min_vram_bytes=min_vram_bytes,
        )
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return self._connection.call("POST", "/v1/jobs", Job, body=body, headers=headers)

    def estimate(self, spec: Mapping[str, Any], *, kind: str = "train", priority: int = 0) -> Estimate:
        """Estimate the effects and the cost of a submission. The server stores nothing."""
        body = SubmitJob(kind=kind, spec=dict(spec), priority=priority)
        return self._connection.call("POST", "/v1/jobs:estimate", Estimate, body=body)

    def get_job(self, job_id: str) -> Job:
        """Return one job with its attempts and its money."""
        return self._get(_job(job_id), Job)

    def jobs(
        self,
        *,
        states: Iterable[JobState] = (),
        labels: Mapping[str, str] | None = None,
        kind: str | None = None,
        match: str | None = None,
        search: str | None = None,
        include: Iterable[JobPart] = (),
    ) -> Iterator[Job]:
        """Jobs, newest first, without attempts; `spec` and `result` are empty unless `include` names them.

        `match`: only those whose name this is, or whose id begins so, with or without the prefix.
        `search`: only those with this text in their name, of any case.
        """
        params = {
            "state": [str(state) for state in states],
            "label": [f"{key}:{value}" for key, value in (labels or {}).items()],
            "kind": kind,
            "match": match,
            "search": search,
            "include": [str(part) for part in include],
        }
        return self._pages("/v1/jobs", JobPage, params)

    def cancel(self, job_id: str) -> Job:
        """End the job. Canceling again changes nothing; a job that has ended otherwise raises IllegalTransition."""
        return self._connection.call("POST", f"{_job(job_id)}/cancel", Job)

    def retry(self, job_id: str) -> Job:
        """A new job that goes on where a failed, canceled or expired one stopped; while that one lives, the same.

        A job that waits after an attempt is given back itself: every machine may have it now.
        """
        return self._connection.call("POST", f"{_job(job_id)}/retry", Job)

    def continue_job(
        self,
        job_id: str,
        spec: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        priority: int | None = None,
        labels: Mapping[str, str] | None = None,
        deadline_s: int | None = None,
        budget_micro_usd: int | None = None,
        min_vram_bytes: int | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """A new job that starts from what an ended one has trained; `spec` holds what is to be other than there."""
        body = ContinueJob(
            spec=dict(spec or {}),
            name=name,
            priority=priority,
            labels=dict(labels or {}),
            deadline_s=deadline_s,
            budget_micro_usd=budget_micro_usd,
            min_vram_bytes=min_vram_bytes,
        )
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return self._connection.call("POST", f"{_job(job_id)}/continue", Job, body=body, headers=headers)

    def set_job_budget(self, job_id: str, budget_micro_usd: int | None) -> Job:
        """Set the job's total budget; None: no limit. A job that used up its budget, and is paused, goes on."""
        body = ChangeJob(budget_micro_usd=budget_micro_usd)
        return self._connection.call("PATCH", _job(job_id), Job, body=body)

    def wait(
        self,
        job_id: str,
        *,
        timeout_s: float | None = None,
        poll_s: float = 1.0,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> Job:
        """Wait until the job has ended or is paused, and return the job.

        A paused job waits for money for an unknown time. Raises Unavailable after `timeout_s`.
        """
        ends_s = None if timeout_s is None else monotonic_s() + timeout_s
        while True:
            job = self.get_job(job_id)
            if job.state in STANDS_STILL:
                return job
            if ends_s is not None and monotonic_s() >= ends_s:
                raise Unavailable(f"{job_id} is still {job.state} after {timeout_s:g} s")
            self._connection.backoff.sleep(poll_s)

    # ---- what a job leaves behind -------------------------------------------------------------------------

    def events(self, job_id: str, *, follow: bool = False, after: int = 0) -> Iterator[Event]:
        """Yield the job's events, oldest first. With `follow`, wait for more until the job has ended or is paused."""
        path = f"{_job(job_id)}/events"
        return self._followed(path, Event, after) if follow else self._later(path, EventPage, after)

    def logs(self, job_id: str, *, follow: bool = False, after: int = 0) -> Iterator[LogLine]:
        """The workload's lines, oldest first; with `follow` until the job has ended or is paused."""
        path = f"{_job(job_id)}/logs"
        return self._followed(path, LogLine, after) if follow else self._later(path, LogPage, after)

    def metrics(self, job_id: str, *, after_step: int = -1) -> Iterator[MetricPoint]:
        """Yield the job's metrics by ascending steps."""
        while True:
            params = {"after_step": after_step, "limit": PAGE}
            items = self._get(f"{_job(job_id)}/metrics", MetricPage, params).items
            yield from items
            if not items:
                return
            after_step = items[-1].step

    def checkpoints(self, job_id: str) -> tuple[Checkpoint, ...]:
        """Committed checkpoints, highest step first."""
        return self._get(f"{_job(job_id)}/checkpoints", CheckpointPage).items

    def provenance(self, job_id: str) -> SignedProvenance:
        """Return the signed record of a training job: checkpoints, machines, audits, files."""
        return self._get(f"{_job(job_id)}/provenance", SignedProvenance)

    def provenance_key(self) -> ProvenanceKey:
        """Return the public key that verifies the records of jobs."""
        return self._get("/v1/provenance-key", ProvenanceKey)

    def artifacts(self, job_id: str) -> tuple[Artifact, ...]:
        """Results, with URLs that live for a while."""
        return self._get(f"{_job(job_id)}/artifacts", ArtifactPage).items

    def download(
        self,
        job_id: str,
        directory: Path,
        *,
        progress: Callable[[int], None] | None = None,
        keep_others: bool = False,
    ) -> tuple[Path, ...]:
        """Fetch every artifact into the directory, each verified against its sha256.

        A file that is there with other bytes is overwritten. With `keep_others` it stays, and the name of the new one
        ends with the job's: `my-dog-4f8s2k.safetensors`.
        """
        apart = job_id[-LONGEST_MARK:] if keep_others else None
        return download_artifacts(self._http, self.artifacts(job_id), directory, progress=progress, apart=apart)

    def download_checkpoint(
        self,
        job_id: str,
        step: int,
        directory: Path,
        *,
        name: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Path:
        """Fetch the checkpoint of a step, verified, into `checkpoint-STEP.safetensors` or a file of that name. Raises
        NotFound, naming the steps that there are."""
        found = {each.step: each for each in self.checkpoints(job_id)}
        if step not in found:
            steps = ", ".join(map(str, sorted(found))) or "none yet"
            raise NotFound(f"{job_id} has no checkpoint of step {step}; there are: {steps}", hint=KEPT_CHECKPOINTS)
        path = directory / (name or f"checkpoint-{step}.safetensors")
        return download_file(self._http, found[step], path, progress=progress)

    def _followed(self, path: str, item: type[Any], after: int) -> Iterator[Any]:
        return follow(self._connection, path, item, after=after)

    def _later(self, path: str, page: type[Any], after: int) -> Iterator[Any]:
        while True:
            items = self._get(path, page, {"after": after, "limit": PAGE}).items
            yield from items
            if not items:
                return
            after = items[-1].id


def _job(job_id: str) -> str:
    return f"/v1/jobs/{quoted(job_id)}"
