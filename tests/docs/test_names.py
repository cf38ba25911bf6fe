"""Names and docstrings of the whole tree: one meaning for each class name, no retired word, and full sentences."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "giornata"
PYTHON = ("src", "tests", "examples", "tools", "benchmarks")
LEAST_WORDS = 5
PRONOUN_FIRST = re.compile(r"(Who|What|Whoever|Whatever|Nobody)\b")
RETIRED_ROW = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules() -> dict[str, ast.Module]:
    return {str(file.relative_to(PACKAGE)): ast.parse(file.read_text()) for file in sorted(PACKAGE.rglob("*.py"))}


def implements_port(node: ast.ClassDef) -> bool:
    """`class Jobs(Queries, work_store.Jobs)` implements the port of its own name."""
    return any(isinstance(base, ast.Attribute) and base.attr == node.name for base in node.bases)


def retired_words() -> dict[str, str]:
    section = (ROOT / "docs" / "glossary.md").read_text().partition("\n## Retired words\n")[2]
    return dict(RETIRED_ROW.findall(section))


def identifiers(text: str) -> Iterator[tuple[str, int]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield token.string, token.start[0]


def docstrings() -> Iterator[tuple[str, str]]:
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, Documented) and (text := ast.get_docstring(node)) is not None:
                yield f"{name}:{1 if isinstance(node, ast.Module) else node.lineno}", text


def test_class_name_has_one_definition_besides_implementations_of_its_port() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for name, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not implements_port(node):
                found[node.name].append(name)
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def test_class_that_implements_a_port_is_the_only_one() -> None:
    names = [
        node.name
        for tree in modules().values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and implements_port(node)
    ]
    assert len(names) > 20
    assert len(names) == len(set(names))


def test_retired_word_is_no_identifier() -> None:
    retired = retired_words()
    assert len(retired) > 50
    mentioned = re.compile(rf"\b({'|'.join(retired)})\b")
    found = []
    for file in (each for folder in PYTHON for each in sorted((ROOT / folder).rglob("*.py"))):
        text = file.read_text()
        if mentioned.search(text):
            used = ((word, line) for word, line in identifiers(text) if word in retired)
            found += [f"{file.relative_to(ROOT)}:{line}: {word}, now {retired[word]}" for word, line in used]
    assert found == []


def test_retired_word_has_a_successor_in_the_package() -> None:
    defined = {node.name for tree in modules().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    named = {name for now in retired_words().values() for name in re.findall(r"`(\w+)`", now)}
    assert named - defined == set()


def test_docstring_does_not_begin_with_a_pronoun() -> None:
    assert [f"{where}: {text.splitlines()[0]}" for where, text in docstrings() if PRONOUN_FIRST.match(text)] == []


def test_docstring_has_at_least_five_words() -> None:
    assert [f"{where}: {text}" for where, text in docstrings() if len(text.split()) < LEAST_WORDS] == []
