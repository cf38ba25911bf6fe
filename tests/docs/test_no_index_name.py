"""Nothing that we ship names Giornata as a package of an index. Nobody owns the name there, so that whoever takes it
could run code on the machines of those who follow the hint.
"""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# With an extra wherever it stands, and by itself in a command; a URL that follows says where the package is.
WITH_EXTRA = re.compile(r"\bgiornata\[[\w, -]*\](?! @ )", re.IGNORECASE)
BY_ITSELF = re.compile(
    r"\b(?:pip3?|pipx|uv)\b[^\n]* (?:install|download|run|add) [^\n]*(?<=[\s'\"])giornata(?![\w/.\[-])"
)
PLACES = ("src", "docs", "deploy", "README.md", "CONTRIBUTING.md", "Makefile", "constraints.txt", "benchmarks")
HISTORY = "docs/adr/"  # decisions are not edited; none of them tells anybody to install something


def hints(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if WITH_EXTRA.search(line) or BY_ITSELF.search(line)]


def shipped() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PLACES],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    return [ROOT / name for name in listed if not name.startswith(HISTORY) and (ROOT / name).is_file()]


def test_no_hint_names_a_package_of_an_index():
    found = {}
    for file in shipped():
        try:
            named = hints(file.read_text())
        except UnicodeDecodeError:
            continue
        if named:
            found[str(file.relative_to(ROOT))] = named
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "pip install 'giornata[train]'",
        "`pip install giornata`",
        "python -m pip install -U giornata",
        "uv pip install --system giornata[server]",
        "needs giornata[kubernetes]",
        "pipx install giornata",
    ],
)
def test_hint_to_install_from_a_package_index_is_found(text):
    assert hints(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install -c constraints.txt '.[train]'",
        "/opt/giornata/bin/pip install --no-cache-dir '.[train]'",
        "env pip install 'giornata[train] @ https://wheels.example/giornata-0.1.0-py3-none-any.whl'",
        "helm install giornata deploy/helm/giornata",
    ],
)
def test_a_clone_a_url_and_a_chart_are_no_such_hint(text):
    assert not hints(text)
