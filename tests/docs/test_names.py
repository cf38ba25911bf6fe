"""Names and docstrings of the whole tree: one meaning for each class name, no retired word, and full sentences."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.parsed_code import modules, nodes

ROOT = Path(__file__).parents[2]
PYTHON = ("src", "tests", "examples", "tools", "benchmarks")
LEAST_WORDS = 5
PRONOUN_FIRST = re.compile(r"(Who|What|Whoever|Whatever|Nobody)\b")
RETIRED_ROW = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)
RETIRED_PART = re.compile(
    r"""brush|chronicle|couriers?|porters?|crew|easel|errand|keeper|learner|muttered|parcel|remarks?|seats?|seated|shelf
    |shel[fv]es?|worn|wears|wish|wishes|wished|tally|tallies|rung""",
    re.VERBOSE,
)
PART = re.compile(r"[A-Z]?[a-z]+")
ALLOWED_PARTS = {"seats", "shelve"}
"""A message of the pipe, and a module of Python."""
RETIRED_PROSE = re.compile(
    r"""\b(brush|chronicle|courier|porter|crew|the[ ]crowd|easel|errand|house[ ]rule|rules?[ ]of[ ]the[ ]house
    |keeper|learner|muttered|parcel|(?:the|each)[ ]park|remark|seat|shelf|shelve|worn|wear|wish)(?:e?[sd])?\b""",
    re.IGNORECASE | re.VERBOSE,
)
ALLOWED_PROSE = (
    "docs/glossary.md",  # lists the words
    "CHANGELOG.md",  # says how things were called when they came
    "tests/docs/test_names.py",
    "tests/contract/agent/test_agent_engine_process.py",  # programs that send the message `seats`
    "tests/contract/agent/test_agent_together.py",  # likewise
)
CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
PRONOUN_TEST = re.compile(
    r"^\s*(?:async )?def (test_(?:d\d+_)?(?:what|whatever|who|whose|whoever|nobody|nothing|none|it|its|they)_\w+)",
    re.MULTILINE,
)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


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


def prose_of_python(text: str) -> Iterator[tuple[str, int]]:
    """Comments, docstrings and other texts of more than one word, each with its line."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string, token.start[0]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.value, node.lineno


def prose_with_retired_words() -> Iterator[str]:
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    for file in (*pages, *(each for folder in PYTHON for each in (ROOT / folder).rglob("*.py"))):
        name, text = str(file.relative_to(ROOT)), file.read_text()
        if name in ALLOWED_PROSE or not RETIRED_PROSE.search(text):
            continue
        for prose, line in prose_of_python(text) if file.suffix == ".py" else ((text, 1),):
            yield from (f"{name}:{line}: {found[0]}" for found in RETIRED_PROSE.finditer(CODE.sub("", prose)))


def docstrings() -> Iterator[tuple[str, str]]:
    for name, tree in modules().items():
        for node in nodes(tree):
            if isinstance(node, Documented) and (text := ast.get_docstring(node)) is not None:
                yield f"{name}:{1 if isinstance(node, ast.Module) else node.lineno}", text


def test_class_name_has_one_definition_in_the_repository_besides_implementations_of_its_port() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for name, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not implements_port(node):
                found[node.name].append(name)
    for file in (each for folder in PYTHON[1:] for each in (ROOT / folder).rglob("*.py")):
        for name in CLASS.findall(file.read_text()):
            found[name].append(str(file.relative_to(ROOT)))
    assert len(found) > 2000
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


@pytest.mark.parametrize("folder", PYTHON)
def test_retired_word_is_no_part_of_an_identifier(folder: str) -> None:
    found = set()
    for file in sorted((ROOT / folder).rglob("*.py")):
        if file.name != Path(__file__).name:
            names = {name for name in re.findall(r"\w+", file.read_text()) if name not in ALLOWED_PARTS}
            parts = ((name, part) for name in names for part in PART.findall(name))
            found |= {
                f"{file.relative_to(ROOT)}: {name}" for name, part in parts if RETIRED_PART.fullmatch(part.lower())
            }
    assert found == set()


def test_retired_word_is_in_no_sentence() -> None:
    assert sorted(prose_with_retired_words()) == []


@pytest.mark.parametrize("text", ["# the crew's jobs", 'say("no seat is free")', '"""It is worn by the base."""'])
def test_retired_word_is_found_in_comment_message_and_docstring(text: str) -> None:
    assert [each for each, _ in prose_of_python(text) if RETIRED_PROSE.search(CODE.sub("", each))]


@pytest.mark.parametrize("text", ['say("seats")', "seats = 2", '"""The message `seats` of the pipe."""'])
def test_retired_word_is_allowed_as_code(text: str) -> None:
    assert not [each for each, _ in prose_of_python(text) if RETIRED_PROSE.search(CODE.sub("", each))]


def test_retired_word_has_a_successor_in_the_package() -> None:
    defined = {node.name for tree in modules().values() for node in nodes(tree) if isinstance(node, ast.ClassDef)}
    named = {name for now in retired_words().values() for name in re.findall(r"`(\w+)`", now)}
    assert named - defined == set()


def test_docstring_does_not_begin_with_a_pronoun() -> None:
    assert [f"{where}: {text.splitlines()[0]}" for where, text in docstrings() if PRONOUN_FIRST.match(text)] == []


def test_docstring_has_at_least_five_words() -> None:
    assert [f"{where}: {text}" for where, text in docstrings() if len(text.split()) < LEAST_WORDS] == []


def test_name_of_a_test_does_not_begin_with_a_pronoun() -> None:
    files = list((ROOT / "tests").rglob("test_*.py"))
    assert len(files) > 600
    found = [f"{file.relative_to(ROOT)}: {name}" for file in files for name in PRONOUN_TEST.findall(file.read_text())]
    assert found == []
