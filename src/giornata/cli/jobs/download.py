"""`giornata checkpoints` and `giornata download`."""

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from giornata.cli.jobs.inputs.find_job import find_job
from giornata.cli.options import JOB_HELP, JobId, JsonFlag, job_ids, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.tools.model import run_model_code
from giornata.cli.ui.output import Output, reporting
from giornata.cli.ui.text import ago, size
from giornata.client.archives.model_card import CARDS, restore_cards, save_record
from giornata.domain.errors import Fault, InvalidInput, NotFound
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.domain.jobs.job import IMPORTED_FROM, JobState
from giornata.protocol.jobs import Job
from giornata.protocol.training.file_names import lora_file

if TYPE_CHECKING:
    from giornata.client import Client


class Format(StrEnum):
    """Files that other programs load."""

    KOHYA = "kohya"
    DIFFUSERS = "diffusers"


JobAtStep = Annotated[
    str,
    typer.Argument(
        metavar="JOB[@STEP]",
        help=f"{JOB_HELP} With @STEP: the files are made from the checkpoint of that step.",
        show_default=False,
        autocompletion=job_ids,
    ),
]
NAME_INSIDE = "lora-kohya"
"""The name in the file's metadata, whatever the file is called: equal checkpoints make equal files."""


def register(app: typer.Typer) -> None:
    """Add `checkpoints` and `download` to `app`."""
    app.command()(checkpoints)
    app.command()(download)


def checkpoints(context: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """List the checkpoints of a job, highest step first."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        found = client.checkpoints(find_job(client, job_id))
        rows = [(str(c.step), f"#{c.attempt}", size(c.size_bytes), ago(c.created_at), c.sha256[:16]) for c in found]
        out.table(("step", "attempt", "size", "written", "sha256"), rows, right=(0, 2, 3))
        out.result({"items": [each.model_dump(mode="json") for each in found]})


def download(
    context: typer.Context,
    job_id: JobAtStep,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the files.", show_default=False)],
    checkpoint: Annotated[
        int | None, typer.Option(help="Make the files from the checkpoint of this step.", show_default=False)
    ] = None,
    formats: Annotated[
        list[Format] | None,
        typer.Option(
            "--format",
            metavar="kohya|diffusers",
            help="With --checkpoint: only this format; may be repeated. Default: the formats of the job.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Download and verify the results of a job.

    An order's pictures are downloaded as far as they are done. With JOB@STEP or --checkpoint STEP, the files are made
    from the checkpoint of that step, even while the job runs.
    """
    with reporting(as_json) as out:
        job_id, step = _with_step(job_id)
        _check(output, formats, checkpoint, step)
        checkpoint = step if checkpoint is None else checkpoint
        with connect(settings_of(context)) as client:
            found = find_job(client, job_id)
            if checkpoint is None:
                files = fetch_results(client, client.get_job(found), output, out)
            else:
                files = _from_checkpoint(client, client.get_job(found), checkpoint, output, formats, out)
            out.result({"files": [str(file) for file in files]})


def _with_step(word: str) -> tuple[str, int | None]:
    """`JOB@500` in its two parts; None where there is no step."""
    job, at, step = word.rpartition("@")
    return (job, int(step)) if at and job and step.isascii() and step.isdigit() else (word, None)


def _check(output: Path, formats: list[Format] | None, checkpoint: int | None, step: int | None) -> None:
    faults = []
    if step is not None and checkpoint not in {None, step}:
        message = f"is {checkpoint}, but JOB@{step} names another step"
        faults.append(Fault(where="--checkpoint", message=message, hint="give the step once"))
    if formats and checkpoint is None and step is None:
        hint = "give JOB@STEP or --checkpoint STEP; giornata checkpoints JOB lists the steps"
        faults.append(
            Fault(where="--format", message="applies only to files that are made from a checkpoint", hint=hint)
        )
    faults += folder_faults(output)
    if faults:
        raise InvalidInput(faults)


def _from_checkpoint(
    client: "Client", job: Job, step: int, output: Path, formats: list[Format] | None, out: Output
) -> tuple[Path, ...]:
    """The checkpoint, and a file of each format: these, or else those of the job."""
    name = job.spec.get("output_name")
    stored = f"{name}-checkpoint-{step}.safetensors" if name else None
    state = client.download_checkpoint(job.id, step, output, name=stored)
    out.hint(f"making LoRA files of {state.name} ...")
    files = [state]
    for each in formats or [Format(kind) for kind in job.spec.get("output_formats") or list(Format)]:
        file = output / lora_file(each, name, step=step)
        words = [str(state), str(file), "--format", each, "--name", NAME_INSIDE]
        run_model_code("giornata.diffusion.files.export", words)
        files.append(file)
    for file in files:
        _say_file(file, out)
    return tuple(files)


def folder_faults(folder: Path | None) -> list[Fault]:
    """Return the reasons why files cannot be put into the folder. The folder need not exist, and is not made."""
    if folder is None:
        return []
    there = next(each for each in (folder, *folder.absolute().parents) if os.path.lexists(each))
    hint = "name another folder"
    if not there.is_dir():
        return [Fault(where="--output", message=f"{there} is not a folder", hint=hint)]
    if not os.access(there, os.W_OK | os.X_OK):
        return [Fault(where="--output", message=f"{there} is not writable", hint=hint)]
    return []


def fetch_results(client: "Client", job: Job, folder: Path, out: Output) -> tuple[Path, ...]:
    """Every result, verified. No file of another job is overwritten. Raises NotFound when there is none yet."""
    if any(folder.glob(CARDS)):
        restore_cards(folder, {each.sha256 for each in client.artifacts(job.id)})
    files = client.download(job.id, folder, keep_others=True)
    files += _record(client, job, files)
    for file in files:
        _say_file(file, out)
    if job.kind in ORDER_KINDS:
        files += client.download_pictures(job.id, folder, progress=lambda _, file: _say_file(file, out))
    if not files:
        raise NotFound(f"{job.id} has no results yet", hint=f"See its progress with: {giornata('job', job.id)}")
    return files


def _record(client: "Client", job: Job, files: Sequence[Path]) -> tuple[Path, ...]:
    """Save the signed record of a training job beside its model card; nothing without a card or a record."""
    cards = [file for file in files if file.match(CARDS)]
    if not cards or job.kind != "train" or job.state is not JobState.SUCCEEDED or IMPORTED_FROM in job.labels:
        return ()
    return (save_record(client.provenance(job.id), cards[0]),)


def _say_file(file: Path, out: Output) -> None:
    out.say(f"{file}  {size(file.stat().st_size)}")
