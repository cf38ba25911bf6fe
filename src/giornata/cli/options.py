"""Options that many commands share, and the settings that result from them."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from giornata.cli.settings import Settings, load_settings
from giornata.cli.settings.hints import note_given
from giornata.domain.errors import Fault, InvalidInput, collecting
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.model import Message


def flag(setting: str, *names: str, metavar: str | None = None) -> Any:
    """The option that sets a setting for one command. Its help is the description and the default of the setting."""
    field = Settings.model_fields[setting]
    default = field.default if isinstance(field.default, str | int | float) else None
    shown = "" if default is None or isinstance(default, bool) else f" [default: {default}]"
    return typer.Option(*names, metavar=metavar, help=f"{field.description}{shown}", show_default=False)


def optional(meaning: str, *names: str, **how: Any) -> Any:
    """The option whose help is `meaning`, without the default. `how` goes to typer."""
    return typer.Option(*names, help=meaning, show_default=False, **how)


COMPLETION_TIMEOUT_S = 1.0
"""The shell waits this long for the server's answer, and completes nothing after that."""
MAX_COMPLETED_JOBS = 50


def job_ids(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The newest jobs whose id begins with `incomplete`, with name and state. None when no server answers."""
    import httpx

    from giornata.cli.settings.connection import connect
    from giornata.client.retry import Backoff
    from giornata.client.trust import trusted
    from giornata.domain.errors import GiornataError

    def hurry(request: httpx.Request) -> None:
        request.extensions["timeout"] = httpx.Timeout(COMPLETION_TIMEOUT_S).as_dict()

    try:
        with (
            httpx.Client(event_hooks={"request": [hurry]}, verify=trusted()) as http,
            connect(settings_of(context), http=http, backoff=Backoff(retries=0)) as client,
        ):
            newest = [job for job, _ in zip(client.jobs(), range(MAX_COMPLETED_JOBS), strict=False)]
    except GiornataError:
        return []
    return [(job.id, f"{job.name}, {job.state}") for job in newest if job.id.startswith(incomplete)]


JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
CLASS_FOLDER = "--class-data-dir"
JOB_HELP = "Id of the job, the beginning of the id, the name of the job, or: last (the newest job)."
JobId = Annotated[str, typer.Argument(metavar="JOB", help=JOB_HELP, show_default=False, autocompletion=job_ids)]
DataOption = Annotated[Path | None, flag("data")]
PlacesOption = Annotated[int | None, flag("places")]
PriceOption = Annotated[float | None, flag("price_usd_per_hour", metavar="USD")]
KindOption = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help="Kind of job that the node takes. May be repeated. [default: train, generate; with up also preprocess]",
        show_default=False,
    ),
]
WorkloadOption = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        metavar="x-NAME=COMMAND",
        help="Your own kind of job, and the command line of the program for it. May be repeated.",
        show_default=False,
    ),
]


TIME = re.compile(r"([0-9]{1,9})([smhd])", re.ASCII)
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def settings_of(context: typer.Context, **flags: Any) -> Settings:
    """The settings, with this command's flags on top of the ones before its name, which hints repeat."""
    note_given(context)
    before = dict(context.find_root().params)
    config = before.pop("config", None)
    shared = {name: before.get(name) for name in ("url", "api_key", "data")}
    given = {name: value for name, value in flags.items() if value is not None}
    return load_settings(config, **(shared | given))


def check_message(message: type[Message], **given: tuple[str, object]) -> None:
    """Refuse what the server would refuse, before a request. `given` has the option and the value of each field.

    Raises InvalidInput with every fault, by its option.
    """
    try:
        message.model_validate({field: value for field, (_, value) in given.items()})
    except ValidationError as error:
        faults = [
            (given[str(each["loc"][0])][0], each["msg"].removeprefix("Value error, ")) for each in error.errors()
        ]
        raise InvalidInput(Fault(where=option, message=text) for option, text in faults) from None


def seconds_of(text: str, *, where: str) -> int:
    """Return the seconds of a time such as `90d`, `12h`, `30m` or `60s`. Raises InvalidInput."""
    found = TIME.fullmatch(text)
    if found is None:
        hint = "give a number with s, m, h or d, such as 90d"
        raise InvalidInput([Fault(where=where, message=f"{text!r} is not a time", hint=hint)])
    return int(found[1]) * UNITS_S[found[2]]


def check_job_name(name: str | None) -> None:
    """Check the option --name. Raises InvalidInput for a name that no job may have."""
    check_message(SubmitJob, spec=("", {}), name=("--name", name))


def misplaced(options: Mapping[str, object], message: str, *, hint: str) -> list[Fault]:
    """A fault for each of these options that was given, because another option excludes it."""
    return [Fault(where=name, message=message, hint=hint) for name, value in options.items() if value is not None]


def workload_commands(workloads: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """`x-NAME` to the words of its command line, split as a shell would. Raises InvalidInput with every one that
    cannot be split."""
    commands: dict[str, tuple[str, ...]] = {}
    faults: list[Fault] = []
    for kind, program in workloads.items():
        with collecting(faults):
            commands[kind] = _shell_words(kind, program)
    if faults:
        raise InvalidInput(faults)
    return commands


def _shell_words(kind: str, program: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(program))
    except ValueError as error:
        hint = "quote it as for a shell"
        raise InvalidInput([Fault(where=f"workloads.{kind}", message=f"{program!r}: {error}", hint=hint)]) from None
