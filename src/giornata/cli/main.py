"""`giornata`: the root of the command line."""

from pathlib import Path
from typing import Annotated

import typer

from giornata import __version__
from giornata.cli import (
    budget,
    cancel_and_retry,
    costs,
    demo,
    download,
    fleet_table,
    follow,
    jobs,
    keys,
    login,
    lora,
    machines,
    model,
    node,
    nodes,
    presets,
    pretrain,
    secrets,
    serve,
    simulate,
    train,
)

app = typer.Typer(
    name="giornata",
    help="Fine-tunes and pre-trains Stable Diffusion on GPUs that may vanish at any moment. No seam shows.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def root(
    url: Annotated[str | None, typer.Option(help="The server (GIORNATA_URL).", show_default=False)] = None,
    api_key: Annotated[str | None, typer.Option(help="Your key (GIORNATA_API_KEY).", show_default=False)] = None,
    data: Annotated[
        Path | None, typer.Option(help="The embedded installation (GIORNATA_DATA).", show_default=False)
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings.", show_default=False)] = None,
    version: Annotated[bool, typer.Option("--version", help="Say the version and end.")] = False,
) -> None:
    """Options before the command's name hold for every command."""
    del url, api_key, data, config
    if version:
        typer.echo(f"giornata {__version__}")
        raise typer.Exit


for module in (
    train,
    presets,
    jobs,
    follow,
    cancel_and_retry,
    budget,
    costs,
    download,
    nodes,
    machines,
    fleet_table,
    keys,
    secrets,
    serve,
    node,
    model,
    lora,
    demo,
    simulate,
    pretrain,
    login,
):
    module.register(app)


def main() -> None:
    """Entry point of the `giornata` command."""
    app()
