"""Folders of the package are small enough to read as a list, and each says what to read first."""

import ast
import re
from pathlib import Path

import pytest

import giornata

ROOT = Path(giornata.__file__).parent
MOST_MODULES = 15
FOLDERS = sorted({file.parent for file in ROOT.rglob("*.py") if file.parent.name != "versions"})
READ = re.compile(r"\bRead `?(\w+)`?")


def name(folder: Path) -> str:
    return str(folder.relative_to(ROOT.parent))


def sentence_of(folder: Path) -> str:
    return ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""


def first_to_read(text: str) -> str | None:
    """The module in the sentence that begins with "Read", or None without such a sentence."""
    found = READ.search(text)
    return found[1] if found else None


def holds(folder: Path, module: str | None) -> bool:
    return module is not None and any((folder / file).exists() for file in (f"{module}.py", f"{module}/__init__.py"))


@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_folder_has_a_sentence_about_itself_and_few_modules(folder: Path) -> None:
    modules = [file for file in folder.glob("*.py") if file.name != "__init__.py"]

    assert len(modules) <= MOST_MODULES
    assert sentence_of(folder)


@pytest.mark.parametrize("folder", [each for each in FOLDERS if each != ROOT], ids=name)
def test_folder_names_a_module_of_its_own_to_read_first(folder: Path) -> None:
    module = first_to_read(sentence_of(folder))

    assert holds(folder, module), f"{name(folder)}/__init__.py: read {module} first: no such module in the folder"


def test_package_says_where_its_tour_is() -> None:
    assert "Read `docs/tour.md` first" in sentence_of(ROOT)


@pytest.mark.parametrize("text", ["Rules of money.", "Rules of money. Read `absent` first."])
def test_sentence_without_a_module_of_the_folder_is_found(text: str) -> None:
    assert not holds(ROOT / "domain", first_to_read(text))
