"""The trained model that draws shapes, which the package ships: `python -m giornata.diffusion.shapes.shipped DIR`.

Loads no torch: a copy takes no more time than copying.
"""

import argparse
import shutil
from pathlib import Path

from giornata.diffusion.base.model_folder import check_model_folder
from giornata.diffusion.tiny.place_model import place_model
from giornata.domain.errors import Fault, InvalidInput

WEIGHTS = Path(__file__).parent / "weights"
CONTROLNET = Path(__file__).parent / "controlnet"
"""A ControlNet on edges for the trained model, in diffusers layout."""


def copy_drawing_model(directory: Path, *, weights: Path = WEIGHTS) -> Path:
    """Copy the model to `directory` and return that. A complete model that is there already is kept.

    Raises InvalidInput when something else is at `directory`, or when this installation came without the weights.
    """
    if faults := check_model_folder(weights):
        message = f"the drawing model is not part of this installation: {faults[0].message}"
        hint = "make it in a checkout of the repository: make tiny-shapes (under an hour on two cores)"
        raise InvalidInput([Fault(where="--shapes", message=message, hint=hint)])
    return place_model(directory, lambda built: shutil.copytree(weights, built))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(
        prog="python -m giornata.diffusion.shapes.shipped", description=copy_drawing_model.__doc__
    )
    parser.add_argument("directory", type=Path, help="where to put the model")
    try:
        copy_drawing_model(parser.parse_args(arguments).directory)
    except InvalidInput as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
