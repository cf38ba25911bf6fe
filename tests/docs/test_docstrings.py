"""Docstrings and texts of fields begin with a noun or a verb, and methods of ports have docstrings."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from tests.fixtures.parsed_code import modules, nodes

NO_SUBJECT = re.compile(
    r"(Who|Whose|Whoever|What|Whatever|Nobody|It|Its|They|These|Those|How|So (?:many|much|long)|Likewise)\b"
)
MOST_WORDS = 20
SENTENCE_END = re.compile(r"(?<=[.?!])\s+")
TEXTS = {"description", "help"}
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def attribute_docs(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each text that stands alone right behind an assignment, with its line."""
    for node in nodes(tree):
        body = getattr(node, "body", None)
        for before, after in pairwise(body) if isinstance(body, list) else ():
            if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
                value = after.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield after.lineno, value.value.strip()


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each docstring of a module, a class or a function, with the line of its owner."""
    for node in nodes(tree):
        if isinstance(node, Documented) and (text := ast.get_docstring(node)) is not None:
            yield 1 if isinstance(node, ast.Module) else node.lineno, text


def helps(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each text of a field, a query parameter or an option, with its line."""
    for node in nodes(tree):
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            value = keyword.value
            if keyword.arg in TEXTS and isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.lineno, value.value


def port_methods() -> Iterator[tuple[str, ast.FunctionDef]]:
    for name, tree in modules().items():
        for node in tree.body if name.startswith("control/ports/") else ():
            if isinstance(node, ast.ClassDef):
                yield from (
                    (f"{name}:{each.lineno}", each) for each in node.body if isinstance(each, ast.FunctionDef)
                )


def without_subject(texts: Iterator[tuple[int, str]]) -> list[str]:
    return [f"{line}: {text}" for line, text in texts if NO_SUBJECT.match(text)]


def test_docstring_of_an_attribute_begins_with_a_subject() -> None:
    assert sum(len(list(attribute_docs(tree))) for tree in modules().values()) > 500
    assert {name: found for name, tree in modules().items() if (found := without_subject(attribute_docs(tree)))} == {}


def test_docstring_begins_with_a_subject() -> None:
    assert {name: found for name, tree in modules().items() if (found := without_subject(docstrings(tree)))} == {}


def test_text_of_a_field_begins_with_a_subject() -> None:
    assert sum(len(list(helps(tree))) for tree in modules().values()) > 500
    assert {name: found for name, tree in modules().items() if (found := without_subject(helps(tree)))} == {}


def test_sentence_of_a_field_has_at_most_twenty_words() -> None:
    long = [
        f"{name}:{line}: {sentence}"
        for name, tree in modules().items()
        for line, text in helps(tree)
        for sentence in SENTENCE_END.split(text)
        if len(sentence.split()) > MOST_WORDS
    ]
    assert long == []


def test_method_of_a_port_has_a_docstring() -> None:
    methods = list(port_methods())
    assert len(methods) > 400
    assert [f"{where}: {method.name}" for where, method in methods if not ast.get_docstring(method)] == []


@pytest.mark.parametrize("text", ["So many starts may fail.", "What it costs.", "Those of a job.", "It makes keys."])
def test_text_without_a_subject_is_found_behind_an_assignment_and_in_a_field(text: str) -> None:
    tree = ast.parse(f'A = 1\n"""{text}"""\nb = Field(description="{text}")')
    assert without_subject(attribute_docs(tree)) == [f"2: {text}"]
    assert without_subject(helps(tree)) == [f"3: {text}"]
