"""`giornata pretrain`: commands about pre-training, each in a module of its own."""

import typer

from giornata.cli import (
    pretrain_demo,
    pretrain_encode,
    pretrain_eval,
    pretrain_ingest,
    pretrain_plan,
    pretrain_run,
    pretrain_size,
    pretrain_submit,
)

COMMANDS = (
    pretrain_plan,
    pretrain_ingest,
    pretrain_encode,
    pretrain_size,
    pretrain_run,
    pretrain_submit,
    pretrain_eval,
    pretrain_demo,
)
"""In the order of the help."""


def register(app: typer.Typer) -> None:
    """Add the group with its commands."""
    group = typer.Typer(no_args_is_help=True, help="Pre-train on Ray: price it, prepare the data, train, judge.")
    for module in COMMANDS:
        module.register(group)
    app.add_typer(group, name="pretrain")
