"""A training job for a server's queue: checked whole, then sent."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from giornata.cli.jobs.inputs.base_models import TIMEOUT, Hub, model_faults
from giornata.cli.jobs.inputs.find_job import find_job
from giornata.cli.jobs.inputs.picture_folders import (
    caption_ending_of,
    folder_notes,
    lengths_of,
    read_class_pictures,
    with_prior,
)
from giornata.cli.jobs.options.spec_options import with_model_option
from giornata.cli.options import CLASS_FOLDER, check_job_name, misplaced
from giornata.cli.settings import Settings
from giornata.cli.settings.connection import target_of
from giornata.cli.ui.output import Output
from giornata.cli.ui.text import micro_usd, parse_size
from giornata.client.storage.training_folder import TrainingFolder, read_training_folder, read_training_subsets
from giornata.client.trust import trusted
from giornata.control.jobs.submission.length_faults import prompts_of
from giornata.control.jobs.submission.spec_faults import NO_DATASET, parse_spec
from giornata.domain.errors import Fault, InvalidInput, Unauthenticated, Unavailable, collecting
from giornata.pictures.subsets import Subset
from giornata.protocol.jobs import Job
from giornata.protocol.uploads import Dataset

if TYPE_CHECKING:
    from giornata.client import Client

SOON_SENT = 100
"""Pictures that are sent without asking how many the project may have: the server says so soon enough."""
OF_THE_OLD_JOB = "(the instance_prompt of the job that is continued; the server looks whether it has one)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionOptions:
    """The arguments of a command that submits a job to a server."""

    directory: Path | None
    class_directory: Path | None = None
    continued: str | None = None
    init_lora: Path | None = None
    name: str | None = None
    priority: int | None = None
    max_cost: str | None = None
    min_vram: str | None = None
    subsets: tuple[Subset, ...] = ()
    class_subsets: tuple[Subset, ...] = ()

    def misplaced(self) -> list[Fault]:
        """A fault for each option that was given with --standalone and means something to a server only."""
        options = {
            "--continue": self.continued,
            "--init-lora": self.init_lora,
            "--name": self.name,
            "--priority": self.priority,
            "--max-cost": self.max_cost,
            "--min-vram": self.min_vram,
        }
        hint = "leave it out, or train through a server: giornata up"
        return misplaced(options, "cannot be combined with --standalone", hint=hint)

    @property
    def called(self) -> str | None:
        """The name of the folder with the pictures; of the first, where there are several."""
        folder = self.subsets[0].path if self.subsets else self.directory
        return None if folder is None else folder.resolve().name

    @property
    def own_classes(self) -> bool:
        """True when class pictures are sent."""
        return self.class_directory is not None or bool(self.class_subsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """All input, found good as far as can be told without the server."""

    spec: dict[str, Any]
    folder: TrainingFolder | None
    class_folder: TrainingFolder | None
    init_lora: Path | None
    continued: str | None
    terms: dict[str, Any]
    """Keyword arguments of `Client.submit` and `Client.continue_job` beside the spec."""


def check(
    asked: SubmissionOptions,
    settings: Settings,
    fields: Callable[[], dict[str, Any]],
    *,
    copies: Path,
    others: Iterable[Fault],
) -> Checked:
    """Check a submission. Raises InvalidInput with all faults of spec, options and pictures, and `others`.

    `copies` is a folder for pictures with masks, which are sent in the place of the originals.
    """
    faults, spec = list(others), dict[str, Any]()
    with collecting(faults):
        spec = with_prior(asked.class_directory, fields())
        faults += _spec_faults(asked, spec)
        faults += lengths_of(spec).of_texts(prompts_of(spec))
        faults += _model_faults(spec, settings)
    faults += _option_faults(asked, spec)
    memory: int | None = None
    budget: int | None = None
    with collecting(faults):
        memory = None if asked.min_vram is None else parse_size(asked.min_vram, option="--min-vram")
    with collecting(faults):
        budget = None if asked.max_cost is None else micro_usd(asked.max_cost, where="--max-cost")
    with collecting(faults):
        check_job_name(asked.name or asked.called)
    folder: TrainingFolder | None = None
    with collecting(faults):
        folder = _folder(asked, spec, minimum=settings.min_pictures, copies=copies)
    class_folder: TrainingFolder | None = None
    with collecting(faults):
        minimum = settings.min_pictures
        class_folder = read_class_pictures(asked.class_directory, asked.class_subsets, spec, minimum=minimum)
    if faults:
        raise InvalidInput(faults)
    terms: dict[str, Any] = {
        "name": asked.name or asked.called,
        "priority": asked.priority,
        "budget_micro_usd": budget,
        "min_vram_bytes": memory,
    }
    return Checked(
        spec=spec,
        folder=folder,
        class_folder=class_folder,
        init_lora=asked.init_lora,
        continued=asked.continued,
        terms=terms,
    )


def send(client: "Client", job: Checked, out: Output) -> Job:
    """The pictures and the file to start from, as far as the server does not have them, and then the job."""
    spec = send_inputs(client, job, out)
    if job.continued is not None:
        return client.continue_job(find_job(client, job.continued), spec, **job.terms)
    return client.submit(spec, **{**job.terms, "priority": job.terms["priority"] or 0})


def send_inputs(client: "Client", job: Checked, out: Output) -> dict[str, Any]:
    """Say what there is to say of the pictures, and upload what the server does not have. Returns the spec that names
    it. Raises InvalidInput when the project may not have as many pictures."""
    for note in folder_notes(job.spec, job.folder, job.class_folder):
        out.hint(note)
    _check_limit(client, job)
    spec = dict(job.spec)
    if job.folder is not None:
        spec["dataset"] = _send_folder(client, job.folder, out).id
    if job.class_folder is not None:
        spec["class_dataset"] = _send_folder(client, job.class_folder, out).id
    if job.init_lora is not None:
        spec["init_lora"] = client.upload_files([job.init_lora])[0].sha256
    return spec


def _spec_faults(asked: SubmissionOptions, spec: dict[str, Any]) -> list[Fault]:
    """Return the faults of the spec.

    A continued job has none here: only the server knows the fields that are not given.
    """
    if asked.continued is not None:
        return []
    own = {"class_dataset": NO_DATASET} if asked.own_classes else {}
    _, faults = parse_spec("train", {**spec, "dataset": NO_DATASET, **own})
    return with_model_option(faults, spec)


def _model_faults(spec: dict[str, Any], settings: Settings) -> list[Fault]:
    def shares_files() -> bool:
        """Return True for the installation on this machine, whose nodes read the same files."""
        try:
            return target_of(settings).local
        except (Unavailable, Unauthenticated):
            return False  # which is said when the server is needed

    with httpx.Client(timeout=TIMEOUT, verify=trusted()) as http:
        return list(model_faults(spec, hub=Hub(environment=os.environ, http=http), shares_files=shares_files))


def _option_faults(asked: SubmissionOptions, spec: dict[str, Any]) -> list[Fault]:
    faults = []
    if asked.continued is None and asked.directory is None and not asked.subsets:
        hint = "give a folder with pictures, or continue a job with --continue JOB"
        faults.append(Fault(where="DIR", message="no folder with pictures is given", hint=hint))
    if asked.init_lora is not None and not asked.init_lora.is_file():
        faults.append(Fault(where="--init-lora", message=f"there is no file {asked.init_lora}"))
    if asked.own_classes and "class_dataset" in spec:
        message = "sets class_dataset, which is given too"
        faults.append(Fault(where=CLASS_FOLDER, message=message, hint="choose one"))
    if asked.continued is not None and asked.init_lora is not None:
        message = "starts from a file, but --continue starts from a job"
        faults.append(Fault(where="--init-lora", message=message, hint="choose one"))
    return faults


def _folder(asked: SubmissionOptions, spec: dict[str, Any], *, minimum: int, copies: Path) -> TrainingFolder | None:
    masks_into = copies if spec.get("masked_loss", spec.get("alpha_mask")) is True else None
    prompt = spec.get("instance_prompt") or (OF_THE_OLD_JOB if asked.continued else None)
    check = lengths_of(spec).of_captions
    if asked.subsets:
        return read_training_subsets(
            asked.subsets, instance_prompt=prompt, minimum=minimum, masks_into=masks_into, captions_check=check
        )
    if asked.directory is None:
        return None
    return read_training_folder(
        asked.directory,
        instance_prompt=prompt,
        minimum=minimum,
        caption_ending=caption_ending_of(spec),
        masks_into=masks_into,
        captions_check=check,
    )


def _check_limit(client: "Client", job: Checked) -> None:
    """Before anything is uploaded, that the server would refuse afterwards."""
    counts = {"DIR": job.folder, CLASS_FOLDER: job.class_folder}
    counted = {where: len(folder.items) for where, folder in counts.items() if folder is not None}
    folders = {where: count for where, count in counted.items() if count > SOON_SENT}
    most = _most_pictures(client) if folders else None
    hint = "choose the best 5 to 50 pictures; an operator raises the limit with: giornata project limits"
    faults = [
        Fault(
            where=where,
            message=f"holds {count} pictures; a dataset of the project may have at most {most}",
            hint=hint,
        )
        for where, count in folders.items()
        if most is not None and count > most
    ]
    if faults:
        raise InvalidInput(faults)


def _most_pictures(client: "Client") -> int | None:
    """Return the caller's project's limit of pictures; None where an older server does not say.

    A root admin sees all projects, with the own project among them.
    """
    from giornata.protocol.project.admin import ROOT_PROJECT

    projects = {project.id: project for project in client.projects()}
    own = next(iter(projects.values()), None) if len(projects) == 1 else projects.get(ROOT_PROJECT)
    return None if own is None else own.max_pictures


def _send_folder(client: "Client", folder: TrainingFolder, out: Output) -> Dataset:
    columns = (TextColumn("uploading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=out.console, disable=not out.live, transient=True) as bar:
        task = bar.add_task("upload", total=folder.size_bytes)
        return client.send_folder(folder, lambda sent, total: bar.update(task, completed=sent, total=total))
