"""Options that the commands about pre-training share."""

from typing import Annotated

import typer

Config = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A recipe (shapes), or a TOML file.", show_default=False)
]
Address = Annotated[
    str | None, typer.Option(help="Of a Ray cluster. Default: a Ray on this machine.", show_default=False)
]
