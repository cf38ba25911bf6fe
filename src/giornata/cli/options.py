"""Options that many commands share, and how a command reaches its settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from giornata.cli.completion import job_ids
from giornata.cli.hints import note_given
from giornata.cli.settings import Settings, load_settings
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.model import Message


def flag(setting: str, *names: str, metavar: str | None = None) -> Any:
    """The option that sets a setting for one command, with the setting's own words and default as its help."""
    field = Settings.model_fields[setting]
    default = field.default if isinstance(field.default, str | int | float) else None
    shown = "" if default is None or isinstance(default, bool) else f" [default: {default}]"
    return typer.Option(*names, metavar=metavar, help=f"{field.description}{shown}", show_default=False)


JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object last.")]
CLASS_FOLDER = "--class-data-dir"
JOB_HELP = "Its id, the beginning of its id, its name, or: last."
JobId = Annotated[str, typer.Argument(metavar="JOB", help=JOB_HELP, show_default=False, autocompletion=job_ids)]
DataOption = Annotated[Path | None, flag("data")]
PlacesOption = Annotated[int | None, flag("places")]
PriceOption = Annotated[float | None, flag("price_usd_per_hour", metavar="USD")]
KindOption = Annotated[
    list[str] | None,
    typer.Option(
        "--kind", metavar="KIND", help="Kind of job to take; may be repeated. [default: train]", show_default=False
    ),
]
WorkloadOption = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        metavar="x-NAME=COMMAND",
        help="A kind of your own, and the program that does it; may be repeated.",
        show_default=False,
    ),
]


def settings_of(context: typer.Context, **flags: Any) -> Settings:
    """The settings, with this command's flags on top of the ones before its name, which hints repeat."""
    note_given(context)
    before = dict(context.find_root().params)
    config = before.pop("config", None)
    shared = {name: before.get(name) for name in ("url", "api_key", "data")}
    given = {name: value for name, value in flags.items() if value is not None}
    return load_settings(config, **(shared | given))


def check_message(message: type[Message], **given: tuple[str, object]) -> None:
    """Refuse what the server would refuse, before one is looked for. `given` has the option and the value of each
    field. Raises InvalidInput with every fault, by its option."""
    try:
        message.model_validate({field: value for field, (_, value) in given.items()})
    except ValidationError as error:
        faults = [(given[str(each["loc"][0])][0], each["msg"]) for each in error.errors()]
        raise InvalidInput(Fault(where=option, message=text) for option, text in faults) from None


def check_job_name(name: str | None) -> None:
    """Raises InvalidInput for a name that no job may have."""
    check_message(SubmitJob, spec=("", {}), name=("--name", name))


def misplaced(options: Mapping[str, object], message: str, *, hint: str) -> list[Fault]:
    """A fault for each of these options that was given: they belong to another way of calling the command."""
    return [Fault(where=name, message=message, hint=hint) for name, value in options.items() if value is not None]
