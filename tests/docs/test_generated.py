"""The generated parts of the docs are what the code says."""

import importlib.util
from pathlib import Path

from giornata.cli.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"


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
