"""`giornata train`: submit a training job, or train on this machine."""

import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from giornata.cli.jobs.download import folder_faults
from giornata.cli.jobs.estimate import estimate_job
from giornata.cli.jobs.follow import finish
from giornata.cli.jobs.inputs.base_models import sent_name
from giornata.cli.jobs.inputs.foreign import (
    Sources,
    beside_file,
    end_of_look,
    read_foreign,
    tell,
    with_file,
    with_options,
    without_file,
)
from giornata.cli.jobs.options.option_types import EstimateOption, MaxCostOption, MinVramOption, PriorityOption
from giornata.cli.jobs.options.spec_options import parse_assignments
from giornata.cli.jobs.options.standalone_options import StandaloneOptions
from giornata.cli.jobs.submission import SubmissionOptions, check, send
from giornata.cli.options import JsonFlag, misplaced, optional, settings_of
from giornata.cli.settings import Settings
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.tools.presets import known
from giornata.cli.ui.output import Output, reporting
from giornata.cli.ui.text import count
from giornata.cli.ui.watch import watch
from giornata.domain.errors import Fault
from giornata.protocol.presets import PRESETS, started_from


def register(app: typer.Typer) -> None:
    """Add the command `train` to `app`."""
    app.command()(train)


def train(
    context: typer.Context,
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="Folder with the subject's pictures.", show_default=False)
    ] = None,
    instance_prompt: Annotated[
        str | None, optional("Caption of every picture that has no caption of its own.")
    ] = None,
    class_directory: Annotated[
        Path | None,
        optional(
            "Folder with your own class pictures, for prior preservation. Needs captions or --set class_prompt=….",
            "--class-data-dir",
            "--reg-data-dir",
            metavar="DIR",
        ),
    ] = None,
    model: Annotated[
        str | None, optional("Base model: a registered name, a hub id, a folder, or a .safetensors file.")
    ] = None,
    steps: Annotated[int | None, optional("Number of optimizer steps. Default: 500, or as the preset says.")] = None,
    preset: Annotated[
        str | None,
        optional(
            f"Preset to start from: {', '.join(PRESETS)}.", metavar="NAME", autocompletion=lambda: list(PRESETS)
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        optional(
            "Value of any field of the spec (docs/reference/training.md). Write lists with commas or as JSON. May be "
            "repeated.",
            "--set",
            metavar="KEY=VALUE",
        ),
    ] = None,
    continued: Annotated[
        str | None,
        optional(
            "Continue the training of this job. Its spec and pictures apply unless you give others.",
            "--continue",
            metavar="JOB",
        ),
    ] = None,
    init_lora: Annotated[
        Path | None, optional("Start from this LoRA file.", "--init-lora", "--network-weights", metavar="FILE")
    ] = None,
    configs: Annotated[
        list[Path] | None,
        optional(
            "Configuration file of sd-scripts (TOML, JSON), OneTrainer (JSON) or ai-toolkit (YAML), which is "
            "translated. May be repeated, for the two files of sd-scripts. Other options override the file.",
            "--from",
            metavar="FILE",
        ),
    ] = None,
    ignored: Annotated[
        list[str] | None,
        optional(
            "With --from: train without this key, which has no equivalent here. May be repeated.",
            "--ignore",
            metavar="KEY",
        ),
    ] = None,
    shown: Annotated[
        bool, typer.Option("--show", help="With --from: print the translation of every key, and submit nothing.")
    ] = False,
    name: Annotated[str | None, optional("Name of the job. Default: the name of the folder.")] = None,
    priority: PriorityOption[int | None] = None,
    max_cost: MaxCostOption = None,
    min_vram: MinVramOption = None,
    follow: Annotated[bool, typer.Option("--follow", help="Show the progress until the job has ended.")] = False,
    estimated: EstimateOption = False,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Train on this machine now, without a server.")
    ] = False,
    checkpoint_to: Annotated[
        str | None,
        optional(
            "With --standalone: folder or S3 prefix for checkpoints, from which a killed run resumes.",
            metavar="s3://BUCKET/PREFIX|DIR",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        optional("With --follow or --standalone: folder for the results.", "--output", "-o", metavar="DIR"),
    ] = None,
    webhook: Annotated[
        str | None, optional("With --standalone: URL that gets a request for each checkpoint and at the end.")
    ] = None,
    webhook_secret: Annotated[
        str | None, optional("With --standalone: secret that signs the webhooks (GIORNATA_WEBHOOK_SECRET).")
    ] = None,
    model_cache_bytes: Annotated[
        int | None,
        optional("With --standalone: maximum disk space for models from the hub, in bytes.", metavar="N", min=0),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Train a LoRA on the pictures in DIR.

    Captions come from NAME.txt beside each picture, or from metadata.jsonl. The command checks every picture before
    it sends anything. With --continue you may leave DIR out: the job uses the old pictures again.

    With --standalone the command needs no server. A killed run resumes from its last checkpoint in storage when you
    start the same command again, and its result has the same bytes.

    With --from, the command prints for each key of the file whether it is used, has no effect here, or is refused. A
    refused key stops the command unless --ignore names it. Relative paths in the file start at the working directory.
    """
    with reporting(as_json) as out:
        settings = settings_of(context, webhook_secret=webhook_secret, model_cache_bytes=model_cache_bytes)
        reading = read_foreign(configs, ignored or ()) if configs else None
        named = Sources(directory=directory, class_directory=class_directory, init_lora=init_lora)
        sources = with_file(reading, named)
        alone = StandaloneOptions(
            directory=sources.directory,
            class_directory=sources.class_directory,
            subsets=sources.subsets,
            class_subsets=sources.class_subsets,
            checkpoint_to=checkpoint_to,
            output=output,
            webhook=webhook,
            model_cache_bytes=model_cache_bytes,
        )
        queued = SubmissionOptions(
            directory=sources.directory,
            class_directory=sources.class_directory,
            subsets=sources.subsets,
            class_subsets=sources.class_subsets,
            continued=continued,
            init_lora=sources.init_lora,
            name=name,
            priority=priority,
            max_cost=max_cost,
            min_vram=min_vram,
        )
        fields = partial(
            _spec, preset, model=model, instance_prompt=instance_prompt, steps=steps, assignments=assignments
        )
        others = []
        if reading is None:
            others += without_file({"--ignore": ignored or None, "--show": shown or None})
        else:
            others += beside_file(reading, {"--preset": preset, "--continue": continued})
            fields = partial(with_options, reading, fields())
            tell(reading, fields(), sources, out)
            if shown:
                raise typer.Exit(end_of_look(reading, fields(), sources, others, out))
        if estimated:
            others += [*alone.misplaced(), *_misplaced(standalone, follow)]
            estimate_job(queued, settings, fields, out, others=others)
            return
        if standalone:
            from giornata.cli.standalone import train_alone

            others += queued.misplaced()
            raise typer.Exit(train_alone(alone, settings=settings, fields=fields, others=others, out=out))
        others += alone.misplaced()
        status = _queue(queued, settings, fields, out, others=others, follow=follow, output=output)
        if status:
            raise typer.Exit(status)


def _misplaced(standalone: bool, follow: bool) -> list[Fault]:
    options = {"--standalone": standalone or None, "--follow": follow or None}
    return misplaced(options, "cannot be combined with --estimate", hint="leave one of them out")


def _queue(
    asked: SubmissionOptions,
    settings: Settings,
    fields: Callable[[], dict[str, Any]],
    out: Output,
    *,
    others: Iterable[Fault],
    follow: bool,
    output: Path | None,
) -> int:
    """Check, send, and stay if that is wanted. Returns the exit status."""
    others = [*others, *_output_faults(output, follow=follow)]
    with tempfile.TemporaryDirectory(prefix="giornata-masks-") as copies:
        job_sent = check(asked, settings, fields, copies=Path(copies), others=others)
        folder = job_sent.folder
        with connect(settings) as client:
            job = send(client, job_sent, out)
            pictures = "" if folder is None else f"{count(len(folder.items), 'picture')}, "
            out.say(f"{job.id} is in the queue: {pictures}{job.total_steps} steps")
            if follow:
                return finish(client, watch(client, job.id, out, output=output), output, out)
            out.hint(f"  follow        {giornata('follow', job.id)}")
            out.hint(f"  download      {giornata('download', job.id, '-o', f'{job.name}-lora')}")
            out.result(job)
            return 0


def _output_faults(output: Path | None, *, follow: bool) -> list[Fault]:
    if output is not None and not follow:
        hint = f"add --follow, or fetch the results later: {giornata('download', 'JOB', '-o', 'DIR')}"
        return [Fault(where="--output", message="the job has no results yet", hint=hint)]
    return folder_faults(output)


def _spec(
    preset: str | None,
    *,
    model: str | None,
    instance_prompt: str | None,
    steps: int | None,
    assignments: list[str] | None,
) -> dict[str, Any]:
    """The preset, then the options, then --set. Raises InvalidInput for what is not an assignment."""
    options = {
        "pretrained_model_name_or_path": None if model is None else sent_name(model),
        "instance_prompt": instance_prompt,
        "max_train_steps": steps,
    }
    given = {key: value for key, value in options.items() if value is not None}
    given |= parse_assignments(assignments or [])
    return given if preset is None else started_from(known(preset), given)
