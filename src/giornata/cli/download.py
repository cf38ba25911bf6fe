"""`giornata checkpoints` and `giornata download`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from giornata.cli.connection import connect
from giornata.cli.model import run_model_code
from giornata.cli.options import JobId, JsonFlag, settings_of
from giornata.cli.output import Output, reporting
from giornata.cli.words import ago, size
from giornata.client import Client
from giornata.domain.errors import Fault, InvalidInput, NotFound


class Format(StrEnum):
    """Files that other programs load."""

    KOHYA = "kohya"
    DIFFUSERS = "diffusers"


FILE_OF = {Format.KOHYA: "lora-kohya.safetensors", Format.DIFFUSERS: "pytorch_lora_weights.safetensors"}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(checkpoints)
    app.command()(download)


def checkpoints(context: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """List a job's checkpoints, highest step first."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        found = client.checkpoints(job_id)
        rows = [(str(c.step), f"#{c.attempt}", size(c.size_bytes), ago(c.created_at), c.sha256[:16]) for c in found]
        out.table(("step", "attempt", "size", "written", "sha256"), rows, right=(0, 2, 3))
        out.result({"items": [each.model_dump(mode="json") for each in found]})


def download(
    context: typer.Context,
    job_id: JobId,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to put the files.", show_default=False)],
    checkpoint: Annotated[
        int | None, typer.Option(help="Make the files from the checkpoint of this step.", show_default=False)
    ] = None,
    formats: Annotated[
        list[Format] | None,
        typer.Option(
            "--format",
            metavar="kohya|diffusers",
            help="With --checkpoint: only this format; may be repeated. Default: those of the job.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Fetch a job's results, verified.

    With --checkpoint they are made from one of its checkpoints, also while the job runs.
    """
    with reporting(as_json) as out:
        _check(output, formats, checkpoint)
        with connect(settings_of(context)) as client:
            if checkpoint is None:
                files = client.download(job_id, output)
                if not files:
                    raise NotFound(f"{job_id} has no results yet; see giornata job {job_id}")
            else:
                wanted = client.get_job(job_id).spec.get("output_formats") or list(Format)
                kinds = formats or [Format(each) for each in wanted]
                files = _from_checkpoint(client, job_id, checkpoint, output, kinds, out)
            for file in files:
                out.say(f"{file}  {size(file.stat().st_size)}")
            out.result({"files": [str(file) for file in files]})


def _check(output: Path, formats: list[Format] | None, checkpoint: int | None) -> None:
    faults = []
    if formats and checkpoint is None:
        hint = "give --checkpoint STEP; which there are: giornata checkpoints JOB"
        faults.append(Fault(where="--format", message="is for files that are made from a checkpoint", hint=hint))
    if output.exists() and not output.is_dir():
        faults.append(Fault(where="--output", message=f"{output} is not a folder", hint="choose another one"))
    if faults:
        raise InvalidInput(faults)


def _from_checkpoint(
    client: Client, job_id: str, step: int, output: Path, formats: list[Format], out: Output
) -> tuple[Path, ...]:
    state = client.download_checkpoint(job_id, step, output)
    out.hint(f"making LoRA files of {state.name} ...")
    files = []
    for each in formats:
        file = output / FILE_OF[each]
        run_model_code("giornata.diffusion.export", [str(state), str(file), "--format", each])
        files.append(file)
    return (state, *files)
