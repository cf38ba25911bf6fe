"""`giornata pretrain`: commands about pre-training, each in a module of its own."""

from typing import Annotated

import typer

from giornata.cli.command_index import PRETRAIN_COMMANDS
from giornata.cli.lazy_group import LazyGroup

Config = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="Configuration of the run: a TOML file, or a recipe such as shapes.",
        show_default=False,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Address of a Ray cluster, such as HOST:6379. Default: start Ray on this machine.", show_default=False
    ),
]


class PretrainGroup(LazyGroup):
    """The command group `pretrain`, which loads the module of each command only when the command runs."""

    sections = PRETRAIN_COMMANDS
    prefix = "pretrain "


def register(app: typer.Typer) -> None:
    """Add the group with its commands."""
    app.add_typer(
        typer.Typer(
            cls=PretrainGroup,
            no_args_is_help=True,
            help="Pre-train on Ray: price a run, prepare data, train, evaluate.",
        ),
        name="pretrain",
    )
