"""Folders of the package are small enough to read as a list, and each says what to read first."""

import ast
from pathlib import Path

import pytest

import giornata

ROOT = Path(giornata.__file__).parent
MOST_MODULES = 15
FOLDERS = sorted({file.parent for file in ROOT.rglob("*.py") if file.parent.name != "versions"})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT.parent)))
def test_folder_has_a_sentence_about_itself_and_few_modules(folder: Path) -> None:
    modules = [file for file in folder.glob("*.py") if file.name != "__init__.py"]

    assert len(modules) <= MOST_MODULES
    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
