"""Puts a model folder in its place, whole or not at all. Loads no torch."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from giornata.diffusion.base.model_folder import check_model_folder, family_of_folder
from giornata.diffusion.families import SDXL, Family
from giornata.domain.errors import Fault, InvalidInput


def place_model(directory: Path, write: Callable[[Path], object], *, family: Family = SDXL) -> Path:
    """Let `write` make a model folder at `directory` and return that. A complete one of the family is kept.

    It is made aside and renamed, so no reader ever sees half of it. Raises InvalidInput when something else is at
    `directory`.
    """
    if _complete(directory, family):
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}-") as aside:
        built = Path(aside) / "model"
        write(built)
        for weights in built.rglob("*.safetensors"):
            weights.chmod(0o644)  # the library makes them private
        try:
            built.rename(directory)
        except OSError as error:
            if not _complete(directory, family):  # another process may have been quicker
                fault = Fault(
                    where=str(directory),
                    message=f"is there already, and is not a complete {family.title} model",
                    hint="remove it, or name another folder",
                )
                raise InvalidInput([fault]) from error
    return directory


def _complete(directory: Path, family: Family) -> bool:
    return directory.is_dir() and not check_model_folder(directory) and family_of_folder(directory) is family
