"""The generated parts of the docs are what the code says."""

import importlib.util
import re
from pathlib import Path

from giornata.cli.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"
MOST_WORDS = 20
DEFAULT = re.compile(r"^\| `[^|]*` \| (?:`GIORNATA_\w+` \| |`\w+` \| )?`([^`|]*)` \|", re.MULTILINE)
"""The default in a row of a generated table, behind the name and the variable or argument."""


def _generator():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_generated_page_is_stale():
    assert _generator().stale() == [], "run: .venv/bin/python docs/generate.py"


def test_every_setting_is_documented_with_a_meaning():
    page = (DOCS / "reference" / "settings.md").read_text()
    for name, field in Settings.model_fields.items():
        assert field.description, f"{name} has no description"
        assert f"`GIORNATA_{name.upper()}`" in page


def test_every_setting_is_read_somewhere():
    code = "".join(file.read_text() for file in (DOCS.parent / "src/giornata/cli").rglob("*.py"))
    assert [name for name in Settings.model_fields if f"settings.{name}" not in code] == []


def test_no_default_of_a_page_is_written_as_python() -> None:
    generator = _generator()
    python = re.compile(r"^(None|True|False|\(.*|<.*|.*'.*'.*)$")
    cells = [cell for page in generator.PARTS for cell in DEFAULT.findall(generator.rendered(page))]
    assert {"true", "null", '["train", "generate"]'} <= set(cells)
    assert [cell for cell in cells if python.match(cell)] == []


def test_sentence_of_a_field_of_pretraining_has_at_most_twenty_words() -> None:
    rows = [row.split(" | ") for row in _generator().pretraining_table().splitlines()[2:]]
    sentences = [each for *_, meaning in rows for each in re.split(r"(?<=[.?!])\s+", meaning.removesuffix(" |"))]
    assert len(sentences) > 100
    assert [each for each in sentences if len(each.split()) > MOST_WORDS] == []
