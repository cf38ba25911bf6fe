"""`giornata`: the root of the command line. It imports no command before it is used."""

from pathlib import Path
from typing import Annotated, Any

import typer

from giornata import __version__
from giornata.cli.command_index import COMMANDS
from giornata.cli.lazy_group import LazyGroup


class RootGroup(LazyGroup):
    """The root group, which loads the module of each command only when the command runs."""

    sections = COMMANDS

    def invoke(self, ctx: Any) -> Any:
        """Run a command. An option of this group that stands behind the command's name is told its place."""
        try:
            return super().invoke(ctx)
        except Exception as error:  # raised again: which module typer has click's errors in depends on its version
            option = getattr(error, "option_name", None)
            if any(option in param.opts for param in self.params) and ctx.invoked_subcommand:
                error.message = f"{option} stands before the command: giornata {option} … {ctx.invoked_subcommand}"  # type: ignore[attr-defined]
                error.possibilities = None  # type: ignore[attr-defined]
            raise


app = typer.Typer(
    cls=RootGroup,
    name="giornata",
    help="Fine-tune and pre-train Stable Diffusion on GPUs that may vanish at any moment.",
    epilog="Help and examples for a command: giornata COMMAND --help",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"giornata {__version__}")
        raise typer.Exit


@app.callback()
def root(
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="URL of the server (GIORNATA_URL).", show_default=False)
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Your API key (GIORNATA_API_KEY).", show_default=False)
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Data directory of the installation on this machine (GIORNATA_DATA).",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML file with settings. Default: giornata.toml in the working directory.",
            show_default=False,
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Options before the name of the command apply to every command."""
    del url, api_key, data, config, version


def main() -> None:
    """Entry point of the `giornata` command."""
    app()
