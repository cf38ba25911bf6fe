"""The drawing model that comes with the package: copied whole, or said to be missing."""

import subprocess
import sys
from pathlib import Path

import pytest

from giornata.diffusion.shapes.shipped import copy_drawing_model
from giornata.diffusion.tiny.tiny_model import build_tiny_model
from giornata.domain.errors import InvalidInput


def test_an_installation_without_weights_says_so_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"not part of this installation.*make tiny-shapes"):
        copy_drawing_model(tmp_path / "model", weights=tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


def test_the_copy_is_whole_and_is_kept_when_it_is_there(tmp_path: Path) -> None:
    weights = build_tiny_model(tmp_path / "weights")
    copy = copy_drawing_model(tmp_path / "copy", weights=weights)
    files = sorted(path.relative_to(weights) for path in weights.rglob("*") if path.is_file())
    assert all((copy / name).read_bytes() == (weights / name).read_bytes() for name in files)
    (copy / "note.txt").write_text("mine")
    copy_drawing_model(copy, weights=weights)
    assert (copy / "note.txt").read_text() == "mine"


def test_copy_of_the_model_loads_no_torch() -> None:
    code = "import sys, giornata.diffusion.shapes.shipped; print(sorted({'torch', 'diffusers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
