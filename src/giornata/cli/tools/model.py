"""The command `giornata tiny-model`, which writes small models."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from giornata.cli.options import JsonFlag
from giornata.cli.ui.output import reporting
from giornata.domain.errors import Fault, GiornataError, InvalidInput, install_hint
from giornata.domain.generation.model_kinds import ModelFamily

MISSING_EXTRA = "No module named"
MODEL_INDEX = "model_index.json"


def register(app: typer.Typer) -> None:
    """Add the command `tiny-model` to `app`."""
    app.command("tiny-model")(tiny_model)


def tiny_model(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the model.", show_default=False)],
    family: Annotated[ModelFamily, typer.Option(help="Architecture of the model.")] = ModelFamily.SDXL,
    shapes: Annotated[
        bool,
        typer.Option(
            "--shapes", help="Write the trained tiny model that draws colored shapes, which comes with Giornata."
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Make a tiny base model to try things on, without a download.

    The model has the real architecture and a few million parameters, which are random unless you give --shapes.
    """
    with reporting(as_json) as out:
        if shapes and family is not ModelFamily.SDXL:
            raise InvalidInput([Fault(where="--family", message="--shapes exists for sdxl only")])
        if faults := folder_faults(directory):
            raise InvalidInput(faults)
        if shapes:
            run_model_code("giornata.diffusion.shapes.shipped", [str(directory)])
        else:
            run_model_code("giornata.diffusion.tiny.tiny_model", [str(directory), "--family", family.value])
        out.say(f"The tiny model{' that draws shapes' if shapes else ''} is in {directory}")
        out.result({"model": str(directory)})


def folder_faults(directory: Path) -> list[Fault]:
    """Return the reasons why no model can be put into the folder. An existing model is kept."""
    hint = "give an empty folder, or one that does not exist yet"
    there = next(each for each in (directory, *directory.absolute().parents) if os.path.lexists(each))
    if not there.is_dir():
        return [Fault(where="DIR", message=f"{there} is a file", hint=hint)]
    try:
        if directory.is_dir() and (directory / MODEL_INDEX).is_file():
            return []
        others = directory.is_dir() and any(directory.iterdir())
    except PermissionError:
        return [Fault(where="DIR", message=f"{there} cannot be read", hint=hint)]
    if others:
        return [Fault(where="DIR", message=f"{there} holds files that are no model", hint=hint)]
    there = directory.absolute().parent if directory.is_dir() else there  # the model is made beside it, and renamed
    try:
        Path(tempfile.mkdtemp(prefix=".giornata-", dir=there)).rmdir()
    except OSError:
        return [Fault(where="DIR", message=f"{there} is not writable", hint=hint)]
    return []


def run_model_code(module: str, arguments: Sequence[str]) -> None:
    """Run model code in a process of its own: the command line never loads torch.

    Raises InvalidInput when the extra with the model code is not installed, and GiornataError when it fails.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode == 0:
        return
    if MISSING_EXTRA in done.stderr:
        message = done.stderr.strip().splitlines()[-1]
        raise InvalidInput([Fault(where="installation", message=message, hint=install_hint("train"))])
    words = [line for line in done.stderr.strip().splitlines() if line.strip()]
    raise GiornataError(words[-1] if words else f"{module} ended with status {done.returncode}")
