"""Parameters of tests are the same in every process: pytest-xdist stops where two workers collect different names."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CHANGING_MODULES = ("datetime", "os", "random", "secrets", "time", "uuid")
NAMED = re.compile(rf"\b({'|'.join(CHANGING_MODULES)})\.")


def calls_of_parameters(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield each call that a decorator `pytest.mark.parametrize(…)` makes for its arguments."""
    for node in ast.walk(tree):
        for decorator in getattr(node, "decorator_list", ()):
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("parametrize"):
                yield from (
                    call for call in ast.walk(decorator) if isinstance(call, ast.Call) and call is not decorator
                )


def changing(tree: ast.Module) -> Iterator[str]:
    """Yield the calls among them that answer differently in another process: of a clock, of chance."""
    for call in calls_of_parameters(tree):
        name = ast.unparse(call.func)
        if name.partition(".")[0] in CHANGING_MODULES and "." in name:
            yield f"{call.lineno}: {ast.unparse(call)}"


def test_parameters_do_not_depend_on_the_process() -> None:
    texts = {str(file): file.read_text() for file in sorted(TESTS.rglob("test_*.py"))}
    found = {file: list(changing(ast.parse(text))) for file, text in texts.items() if NAMED.search(text)}
    assert len(found) > 50
    assert {file: calls for file, calls in found.items() if calls} == {}


@pytest.mark.parametrize("value", ["int(time.time()) - 3600", "{'exp': time.time()}", "uuid.uuid4().hex"])
def test_parameter_that_changes_is_found(value: str) -> None:
    source = f"@pytest.mark.parametrize('value', [{value}], ids=str)\ndef test_it(value): ..."
    assert len(list(changing(ast.parse(source)))) == 1
