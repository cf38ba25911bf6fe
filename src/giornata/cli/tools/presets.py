"""`giornata presets`: named starting points for training."""

from typing import Annotated, Any

import typer

from giornata.cli.options import JsonFlag
from giornata.cli.ui.output import reporting
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.presets import PRESETS, WITHOUT_PICTURES, full_spec

presets = typer.Typer(help="List the presets: named starting points for training.", invoke_without_command=True)


def register(app: typer.Typer) -> None:
    """Add the command group `presets` to `app`."""
    app.add_typer(presets, name="presets")


@presets.callback()
def list_presets(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List the presets and the purpose of each."""
    if context.invoked_subcommand is not None:
        return
    with reporting(as_json) as out:
        words = {name: (preset.__doc__ or "").split("\n")[0] for name, preset in PRESETS.items()}
        out.table(("preset", "for"), list(words.items()), prose=(1,))
        out.hint("  all its fields     giornata presets show NAME")
        out.hint("  use one            giornata train DIR --preset NAME --set FIELD=VALUE")
        out.result({"presets": [{"name": name, "for": text} for name, text in words.items()]})


@presets.command()
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name of the preset, as `giornata presets` shows it.", show_default=False
        ),
    ],
    as_json: JsonFlag = False,
) -> None:
    """Show the whole spec of a preset.

    The table marks fields that keep their default.
    """
    with reporting(as_json) as out:
        own = PRESETS[known(name)]()
        spec = full_spec(own)
        rows = [(field, _word(value), "" if field in own else "default") for field, value in spec.items()]
        out.table(("field", "value", ""), rows, prose=(1,))
        if name not in WITHOUT_PICTURES:
            out.hint("  prompts are drawn when the job is done; without: --set sample_prompts=[]")
        out.result({"name": name, "spec": spec})


def known(name: str) -> str:
    """The name. Raises InvalidInput for one that nobody knows."""
    if name not in PRESETS:
        hint = f"one of: {', '.join(PRESETS)}"
        raise InvalidInput([Fault(where="preset", message=f"there is no preset {name!r}", hint=hint)])
    return name


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "–" if value is None else str(value)
