"""`giornata sweep`: training jobs that differ in some settings, under one budget."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from giornata.cli.jobs.compare import say_outcomes, say_reasons
from giornata.cli.jobs.inputs.base_models import sent_name
from giornata.cli.jobs.inputs.find_job import find_job
from giornata.cli.jobs.options.option_types import MinVramOption, PriorityOption
from giornata.cli.jobs.options.spec_options import parse_assignments, parse_value
from giornata.cli.jobs.submission import Checked, SubmissionOptions, check, send_inputs
from giornata.cli.options import JobId, JsonFlag, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.tools.presets import known
from giornata.cli.ui.output import Output, reporting
from giornata.cli.ui.text import count
from giornata.client import Client
from giornata.domain.billing.money import format_usd
from giornata.domain.errors import Fault, InvalidInput, collecting
from giornata.protocol.presets import started_from
from giornata.protocol.specs import TrainSpec, canonical_names
from giornata.protocol.sweeps import Sweep

Change = dict[str, Any]
sweep = typer.Typer(help="Train LoRAs that differ in some settings, under one budget.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the command group `sweep` to `app`."""
    app.add_typer(sweep, name="sweep")


@sweep.command()
def run(
    context: typer.Context,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder with the subject's pictures.", show_default=False)
    ],
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE[,VALUE]",
            help="Any field of the spec. Several values: a job for each combination. Write values of a list or a "
            "text as a JSON list. May be repeated.",
            show_default=False,
        ),
    ] = None,
    changes_file: Annotated[
        Path | None,
        typer.Option(
            "--changes",
            metavar="FILE",
            help="JSON file with a list of objects: a job for each, with these fields changed.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Base model: a hub id, a folder, or a .safetensors file.", show_default=False)
    ] = None,
    instance_prompt: Annotated[
        str | None, typer.Option(help="Caption of every picture that has no caption of its own.", show_default=False)
    ] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Preset that all jobs start from.", show_default=False)
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the sweep. Default: the name of the folder.", show_default=False)
    ] = None,
    priority: PriorityOption[int | None] = None,
    max_cost: Annotated[
        str | None,
        typer.Option(
            metavar="USD",
            help="Budget of all jobs together, in US dollars. A job begins only when there is room for it.",
            show_default=False,
        ),
    ] = None,
    min_vram: MinVramOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Train a LoRA for each combination of values, or for each change in a file.

    All jobs are checked before any of them is submitted.
    """
    with reporting(as_json) as out:
        settings = settings_of(context)
        options = {
            "pretrained_model_name_or_path": None if model is None else sent_name(model),
            "instance_prompt": instance_prompt,
        }
        given = {key: value for key, value in options.items() if value is not None}
        faults: list[Fault] = []
        grid, changes, common = dict[str, list[Any]](), list[Change](), given
        with collecting(faults):
            fixed, grid = read_grid(assignments or [])
            common = {**given, **fixed} if preset is None else started_from(known(preset), {**given, **fixed})
        with collecting(faults):
            changes = [] if changes_file is None else read_changes(changes_file)
        faults += _axis_faults(grid, changes, faults)
        if faults:
            raise InvalidInput(faults)
        asked = SubmissionOptions(
            directory=directory, name=name, priority=priority, max_cost=max_cost, min_vram=min_vram
        )
        with tempfile.TemporaryDirectory(prefix="giornata-masks-") as copies:
            first = first_job(common, grid, changes)
            checked = check(asked, settings, lambda: first, copies=Path(copies), others=())
            with connect(settings) as client:
                made = _submit(client, checked, common, grid, changes, out)
        out.say(f"{made.job.id} is a sweep of {count(len(made.jobs), 'job')}")
        say_outcomes(made.jobs, out, fields=made.differs)
        out.hint(f"  results       {giornata('sweep', 'show', made.job.id)}")
        out.hint(f"  cancel all    {giornata('cancel', made.job.id)}")
        out.result(made)


def _axis_faults(grid: dict[str, list[Any]], changes: Sequence[Change], others: Sequence[Fault]) -> list[Fault]:
    if grid and changes:
        fields = ", ".join(grid)
        message = f"cannot be combined with several values of {fields}"
        return [Fault(where="--changes", message=message, hint="put the values into the file")]
    if not grid and not changes and not others:
        hint = "such as --set rank=8,16, or --changes FILE"
        return [Fault(where="--set", message="no field has several values", hint=hint)]
    return []


def _submit(
    client: Client,
    checked: Checked,
    common: dict[str, Any],
    grid: dict[str, list[Any]],
    changes: Sequence[Change],
    out: Output,
) -> Sweep:
    """Send the pictures, and then the sweep."""
    sent = send_inputs(client, checked, out)
    own = canonical_names(TrainSpec, common)[0]
    spec = {field: value for field, value in sent.items() if field in own or field == "dataset"}
    terms = {**checked.terms, "priority": checked.terms["priority"] or 0}
    return client.submit_sweep(spec, grid=grid, changes=changes, **terms)


@sweep.command()
def show(context: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """Show the jobs of a sweep: what differs, loss, cost and sample sheet of each."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        found = client.get_sweep(find_job(client, job_id))
        job = found.job
        limit = "" if job.budget_micro_usd is None else f", at most {format_usd(job.budget_micro_usd)}"
        out.say(f"{job.id} {job.name}: {job.state}, {job.step} of {job.total_steps} jobs have ended")
        out.say(f"  cost        {format_usd(job.cost_micro_usd)}{limit}")
        say_outcomes(found.jobs, out, fields=found.differs)
        say_reasons(found.jobs, out)
        out.result(found)


def read_grid(assignments: Sequence[str]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Divide `--set` into the fields that all jobs have, and those that take several values.

    rank=8,16 are two values, and so is [8, 16] in JSON. Of a field that is a list itself, or a text such as a prompt,
    only a list in JSON has several values. Raises InvalidInput that lists every assignment without a name.
    """
    common, grid = parse_assignments(assignments), dict[str, list[Any]]()
    texts = {key.strip(): text for key, _, text in (each.partition("=") for each in assignments)}
    for key, text in texts.items():
        values = _values(key, text)
        if len(values) > 1:
            grid[key] = values
            del common[key]
    return common, grid


def read_changes(path: Path) -> list[Change]:
    """Return the changes in a JSON file: a list of objects. Raises InvalidInput."""
    hint = 'such as [{"rank": 8}, {"rank": 16, "learning_rate": 5e-5}]'
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput([Fault(where="--changes", message=f"{path} cannot be read: {error}")]) from None
    except json.JSONDecodeError as error:
        raise InvalidInput([Fault(where="--changes", message=f"{path} is not JSON: {error}", hint=hint)]) from None
    if not isinstance(found, list) or not found or not all(isinstance(each, dict) and each for each in found):
        message = f"{path} is not a list of objects with fields in them"
        raise InvalidInput([Fault(where="--changes", message=message, hint=hint)])
    return found


def _values(key: str, text: str) -> list[Any]:
    own = next(iter(canonical_names(TrainSpec, {key: None})[0]))
    field = TrainSpec.model_fields.get(own)
    value, is_list = parse_value(text), field is not None and _holds(field.annotation, (tuple, list))
    if isinstance(value, list):
        return value if not is_list or (all(isinstance(each, list) for each in value) and value) else [value]
    if field is None or is_list or not isinstance(value, str) or _is_prose(field.annotation):
        return [value]
    return [parse_value(part.strip()) for part in text.split(",") if part.strip()]


def _is_prose(annotation: Any) -> bool:
    """Return True for a field whose values may have commas in them: any text."""
    return _holds(annotation, (str,))


def _holds(annotation: Any, wanted: tuple[type, ...]) -> bool:
    origin = get_origin(annotation)
    if annotation in wanted or origin in wanted:
        return True
    return any(_holds(each, wanted) for each in get_args(annotation))


def first_job(common: Mapping[str, Any], grid: Mapping[str, Sequence[Any]], changes: Sequence[Change]) -> Change:
    """Return the fields of the first job, by which the command checks pictures and spec before it sends anything."""
    change = changes[0] if changes else {field: values[0] for field, values in grid.items()}
    return {**canonical_names(TrainSpec, common)[0], **canonical_names(TrainSpec, change)[0]}
