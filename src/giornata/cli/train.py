"""`giornata train`: pictures in, a job out."""

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from giornata.cli.budget import micro_usd
from giornata.cli.connection import connect
from giornata.cli.options import JsonFlag, settings_of
from giornata.cli.output import EXIT_FAILED, EXIT_PAUSED, Output, reporting
from giornata.cli.presets import named
from giornata.cli.sizes import parse_size
from giornata.cli.spec_words import parse_assignments
from giornata.cli.standalone import train_alone
from giornata.cli.standalone_input import Alone
from giornata.cli.watch import watch
from giornata.client import Client
from giornata.client.training_folder import TrainingFolder, read_training_folder
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.job import JobState
from giornata.protocol.datasets import Dataset
from giornata.protocol.presets import PRESETS

OF_THE_OLD_JOB = "(the instance_prompt of the job that is continued; the server looks whether it has one)"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(train)


def train(
    context: typer.Context,
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="Folder with the subject's pictures.", show_default=False)
    ] = None,
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
    continued: Annotated[
        str | None,
        typer.Option(
            "--continue",
            metavar="JOB",
            help="Start from what this job has trained. Its spec and pictures hold for what is not given here.",
            show_default=False,
        ),
    ] = None,
    init_lora: Annotated[
        Path | None,
        typer.Option(
            "--init-lora", "--network-weights", metavar="FILE", help="Start from this LoRA.", show_default=False
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="A name for people.", show_default=False)] = None,
    priority: Annotated[
        int | None, typer.Option(min=-100, max=100, help="Higher goes first.", show_default=False)
    ] = None,
    max_cost: Annotated[
        str | None,
        typer.Option(metavar="USD", help="Pause the job when it has cost this, such as 0.50.", show_default=False),
    ] = None,
    min_vram: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Only nodes with at least this much GPU memory: 20GB.", show_default=False),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Show the progress until the end.")] = False,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Train on this machine, here and now, without a server.")
    ] = False,
    checkpoint_to: Annotated[
        str | None,
        typer.Option(metavar="s3://BUCKET/PREFIX|DIR", help="Standalone: where checkpoints go.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Standalone: where to put the LoRA.", show_default=False)
    ] = None,
    webhook: Annotated[
        str | None, typer.Option(help="Standalone: URL to tell of checkpoints and the end.", show_default=False)
    ] = None,
    webhook_secret: Annotated[
        str | None, typer.Option(help="Signs webhooks (GIORNATA_WEBHOOK_SECRET).", show_default=False)
    ] = None,
    model_cache_bytes: Annotated[
        int | None,
        typer.Option(min=0, help="Standalone: bound of the models kept from the hub.", show_default=False),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Train a LoRA on the pictures in DIR.

    Captions are taken from NAME.txt beside each picture, or from metadata.jsonl. Nothing is sent before every
    picture has been looked at. With --continue, DIR may be left out: the old pictures are taken again.

    With --standalone there is no server: started again with the same command, a run that was killed goes on from
    its last checkpoint in storage, and ends with the same bytes.
    """
    with reporting(as_json) as out, tempfile.TemporaryDirectory(prefix="giornata-masks-") as copies:
        settings = settings_of(context, webhook_secret=webhook_secret, model_cache_bytes=model_cache_bytes)
        alone = Alone(
            directory=directory,
            checkpoint_to=checkpoint_to,
            output=output,
            webhook=webhook,
            model_cache_bytes=model_cache_bytes,
        )
        if standalone:
            _refuse_with_standalone(
                {
                    "--continue": continued,
                    "--init-lora": init_lora,
                    "--max-cost": max_cost,
                    "--min-vram": min_vram,
                }
            )
            # What is missing in the spec is told together with all the rest.
            raise typer.Exit(
                train_alone(
                    alone,
                    settings=settings,
                    fields=lambda: _spec(
                        preset, model=model, instance_prompt=instance_prompt, steps=steps, assignments=assignments
                    ),
                    out=out,
                )
            )
        alone.refuse_options()
        spec = _spec(preset, model=model, instance_prompt=instance_prompt, steps=steps, assignments=assignments)
        _refuse(spec, directory, continued, init_lora, wrong=_wrong_bounds(min_vram, max_cost))
        memory, budget = _bounds(min_vram, max_cost)
        folder = None
        if directory is not None:
            masked = spec.get("masked_loss", spec.get("alpha_mask"))
            folder = read_training_folder(
                directory,
                instance_prompt=spec.get("instance_prompt") or (OF_THE_OLD_JOB if continued else None),
                minimum=settings.min_pictures,
                masks_into=Path(copies) if masked is True else None,
            )
            for note in folder.notes:
                out.hint(note)
        with connect(settings) as client:
            if folder is not None:
                spec["dataset"] = _send(client, folder, out).id
            if init_lora is not None:
                spec["init_lora"] = client.upload_files([init_lora])[0].sha256
            called = None if directory is None else directory.resolve().name
            if continued is None:
                job = client.submit(
                    spec,
                    name=name or called,
                    priority=priority or 0,
                    budget_micro_usd=budget,
                    min_vram_bytes=memory,
                )
            else:
                job = client.continue_job(
                    continued,
                    spec,
                    name=name or called,
                    priority=priority,
                    budget_micro_usd=budget,
                    min_vram_bytes=memory,
                )
            pictures = "" if folder is None else f"{len(folder.items)} pictures, "
            out.say(f"{job.id} is in the queue: {pictures}{job.total_steps} steps")
            if follow:
                job = watch(client, job.id, out)
            else:
                out.hint(f"  follow it     giornata events {job.id} --follow")
            if not follow or job.state is JobState.SUCCEEDED:
                out.hint(f"  get it        giornata download {job.id} -o {called or job.id}-lora")
            out.result(job)
        if follow and job.state is not JobState.SUCCEEDED:
            raise typer.Exit(EXIT_PAUSED if job.state is JobState.PAUSED else EXIT_FAILED)


def _spec(
    preset: str | None,
    *,
    model: str | None,
    instance_prompt: str | None,
    steps: int | None,
    assignments: list[str] | None,
) -> dict[str, Any]:
    """The preset, then the options, then --set. Raises InvalidInput for what is no assignment."""
    spec = named(preset) if preset is not None else {}
    options = {
        "pretrained_model_name_or_path": _model_name(model),
        "instance_prompt": instance_prompt,
        "max_train_steps": steps,
    }
    spec |= {key: value for key, value in options.items() if value is not None}
    return spec | parse_assignments(assignments or [])


def _refuse(
    spec: dict[str, Any],
    directory: Path | None,
    continued: str | None,
    init_lora: Path | None,
    *,
    wrong: Iterable[Fault],
) -> None:
    """Raises InvalidInput with all that is missing or too much, and what is wrong besides."""
    faults = []
    if continued is None and not ({"pretrained_model_name_or_path", "model"} & spec.keys()):
        hint = (
            "a hub id such as stabilityai/stable-diffusion-xl-base-1.0, or a folder made by: giornata tiny-model DIR"
        )
        faults.append(Fault(where="--model", message="no model is named", hint=hint))
    if continued is None and directory is None:
        hint = "a folder with at least a handful of them; or go on with --continue JOB"
        faults.append(Fault(where="DIR", message="no pictures are named", hint=hint))
    if continued is not None and init_lora is not None:
        message = "starts from a file, and --continue from a job"
        faults.append(Fault(where="--init-lora", message=message, hint="choose one"))
    faults += wrong
    if faults:
        raise InvalidInput(faults)


def _bounds(min_vram: str | None, max_cost: str | None) -> tuple[int | None, int | None]:
    """Memory in bytes and money in micro-dollars, where they were given. Raises InvalidInput for the first fault."""
    memory = None if min_vram is None else parse_size(min_vram, option="--min-vram")
    return memory, None if max_cost is None else micro_usd(max_cost, where="--max-cost")


def _wrong_bounds(min_vram: str | None, max_cost: str | None) -> list[Fault]:
    faults: list[Fault] = []
    for one in ((min_vram, None), (None, max_cost)):
        try:
            _bounds(*one)
        except InvalidInput as wrong:
            faults += wrong.faults
    return faults


def _refuse_with_standalone(given: Mapping[str, object]) -> None:
    hint = "leave it out, or train through a server: giornata up"
    faults = [
        Fault(where=option, message="does not go with --standalone", hint=hint)
        for option, value in given.items()
        if value is not None
    ]
    if faults:
        raise InvalidInput(faults)


def _model_name(model: str | None) -> str | None:
    """A folder's absolute path: nodes have another working directory. Anything else is a hub id, left as it is."""
    return str(Path(model).resolve()) if model is not None and Path(model).is_dir() else model


def _send(client: Client, folder: TrainingFolder, out: Output) -> Dataset:
    columns = (TextColumn("uploading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=out.console, disable=not out.live, transient=True) as bar:
        task = bar.add_task("upload", total=folder.size_bytes)
        return client.send_folder(folder, lambda sent, total: bar.update(task, completed=sent, total=total))
