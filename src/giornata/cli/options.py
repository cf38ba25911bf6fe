"""Options that many commands share, and how a command reaches its settings."""

from pathlib import Path
from typing import Annotated, Any

import typer

from giornata.cli.settings import Settings, load_settings

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object last.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)]
DataOption = Annotated[
    Path | None, typer.Option("--data", help="Where the installation keeps everything.", show_default=False)
]


def settings_of(context: typer.Context, **flags: Any) -> Settings:
    """The settings, with this command's flags on top of the ones before its name."""
    before = dict(context.find_root().params)
    config = before.pop("config", None)
    shared = {name: before.get(name) for name in ("url", "api_key", "data")}
    given = {name: value for name, value in flags.items() if value is not None}
    return load_settings(config, **(shared | given))
