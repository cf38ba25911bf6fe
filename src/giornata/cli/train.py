"""`giornata train`: pictures in, a job out."""

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from giornata.cli.connection import connect
from giornata.cli.options import JsonFlag, settings_of
from giornata.cli.output import EXIT_FAILED, Output, reporting
from giornata.cli.presets import named
from giornata.cli.spec_words import parse_assignments
from giornata.cli.watch import watch
from giornata.client import Client
from giornata.client.training_folder import TrainingFolder, read_training_folder
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.job import JobState
from giornata.protocol.datasets import Dataset
from giornata.protocol.presets import PRESETS


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(train)


def train(
    context: typer.Context,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder with the subject's pictures.", show_default=False)
    ],
    instance_prompt: Annotated[
        str | None, typer.Option(help="Caption of every picture without one of its own.", show_default=False)
    ] = None,
    model: Annotated[str | None, typer.Option(help="Hub id, or a folder on the nodes.", show_default=False)] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.", show_default=False)] = None,
    preset: Annotated[str | None, typer.Option(help=f"One of: {', '.join(PRESETS)}.", show_default=False)] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Any field of the spec; may be repeated.", show_default=False
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="A name for people.", show_default=False)] = None,
    priority: Annotated[int, typer.Option(min=-100, max=100, help="Higher goes first.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", help="Show the progress until the end.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Train a LoRA on the pictures in DIR.

    Captions are taken from NAME.txt beside each picture, or from metadata.jsonl. Nothing is sent before every
    picture has been looked at.
    """
    with reporting(as_json) as out, tempfile.TemporaryDirectory(prefix="giornata-masks-") as copies:
        settings = settings_of(context)
        spec = _spec(preset, model=model, instance_prompt=instance_prompt, steps=steps, assignments=assignments)
        masked = spec.get("masked_loss", spec.get("alpha_mask"))
        folder = read_training_folder(
            directory,
            instance_prompt=spec.get("instance_prompt"),
            minimum=settings.min_pictures,
            masks_into=Path(copies) if masked is True else None,
        )
        for note in folder.notes:
            out.hint(note)
        with connect(settings) as client:
            spec["dataset"] = _send(client, folder, out).id
            job = client.submit(spec, name=name or directory.resolve().name, priority=priority)
            out.say(f"{job.id} is in the queue: {len(folder.items)} pictures, {job.total_steps} steps")
            if follow:
                job = watch(client, job.id, out)
            else:
                out.hint(f"  follow it     giornata events {job.id} --follow")
            if not follow or job.state is JobState.SUCCEEDED:
                out.hint(f"  get it        giornata download {job.id} -o {directory.resolve().name}-lora")
            out.result(job)
        if follow and job.state is not JobState.SUCCEEDED:
            raise typer.Exit(EXIT_FAILED)


def _spec(
    preset: str | None,
    *,
    model: str | None,
    instance_prompt: str | None,
    steps: int | None,
    assignments: list[str] | None,
) -> dict[str, Any]:
    """The preset, then the options, then --set. Raises InvalidInput with every fault."""
    spec = named(preset) if preset is not None else {}
    options = {
        "pretrained_model_name_or_path": _model_name(model),
        "instance_prompt": instance_prompt,
        "max_train_steps": steps,
    }
    spec |= {key: value for key, value in options.items() if value is not None}
    spec |= parse_assignments(assignments or [])
    if not ({"pretrained_model_name_or_path", "model"} & spec.keys()):
        hint = (
            "a hub id such as stabilityai/stable-diffusion-xl-base-1.0, or a folder made by: giornata tiny-model DIR"
        )
        raise InvalidInput([Fault(where="--model", message="no model is named", hint=hint)])
    return spec


def _model_name(model: str | None) -> str | None:
    """A folder's absolute path: nodes have another working directory. Anything else is a hub id, left as it is."""
    return str(Path(model).resolve()) if model is not None and Path(model).is_dir() else model


def _send(client: Client, folder: TrainingFolder, out: Output) -> Dataset:
    columns = (TextColumn("uploading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=out.console, disable=not out.live, transient=True) as bar:
        task = bar.add_task("upload", total=folder.size_bytes)
        return client.send_folder(folder, lambda sent, total: bar.update(task, completed=sent, total=total))
