"""Rules of security that the code of the package keeps everywhere: comparisons, unpickling, models' weights."""

import ast
import re
from collections.abc import Iterator

import pytest
from tests.fixtures.parsed_code import modules, nodes

SECRET_WORDS = {"secret", "token", "signature", "password", "csrf", "mac", "hmac"}
# Words that stand beside those above in names of what is no secret itself.
NO_SECRETS = {
    "count",
    "counts",
    "tokens",
    "length",
    "name",
    "id",
    "ids",
    "kind",
    "format",
    "url",
    "machine",
    "max",
    "number",
}
UNPICKLE = re.compile(
    r"^((c?pickle|dill|cloudpickle|joblib|shelve|marshal)\.(load|loads|open|Unpickler)|torch\.load|torch\.jit\.load"
    r"|(np|numpy)\.load|pandas\.read_pickle|yaml\.(load|unsafe_load|full_load)|eval|exec|__import__)$"
)
NOT_SECRET = {
    "pictures/inspector/examine.py",  # the first bytes of a file's format
    "pretrain/data/fence.py",  # who owns a storage, written there in clear
}
ALLOWED = {
    "pretrain/feeding/graph.py": {"pickle.loads"},  # made by this process, carried by Ray within one run
    "pretrain/data/ingest_tasks.py": {"pickle.loads"},  # the same
    "pretrain/evaluation/scores.py": {"torch.jit.load"},  # a file of the operator's own choice, on the own machine
}
WEIGHTLESS = re.compile(r"(Tokenizer|Scheduler|Processor\w*|ProcessorPil)$")


def dotted(node: ast.AST) -> str:
    """`a.b.c` of a name or an attribute; a question mark for anything else."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def names_a_secret(node: ast.AST) -> bool:
    """True for a value whose name says that it is a secret, or made of one. A constant's is in capitals."""
    if isinstance(node, ast.Call):
        return names_a_secret(node.func)
    name = dotted(node)
    words = set(name.rpartition(".")[2].lower().strip("_").split("_"))
    return name.upper() != name and bool(words & SECRET_WORDS) and not words & NO_SECRETS


def compared_secrets(tree: ast.Module) -> Iterator[int]:
    """Lines on which a secret is compared with another value by `==`, `!=` or `in`."""
    for node in nodes(tree):
        if isinstance(node, ast.Compare) and any(
            isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in node.ops
        ):
            sides = [node.left, *node.comparators]
            constant = any(isinstance(each, ast.Constant | ast.Set | ast.Tuple) for each in sides)
            of_a_column = any(".c." in dotted(each) for each in sides)  # the database looks up what is hashed
            if any(map(names_a_secret, sides)) and not constant and not of_a_column:
                yield node.lineno


def unpickled(tree: ast.Module) -> set[str]:
    """Functions called that can run the code of what they read."""
    calls = {dotted(node.func) for node in nodes(tree) if isinstance(node, ast.Call)}
    return {name for name in calls if UNPICKLE.match(name)}


def careless_weights(tree: ast.Module) -> Iterator[int]:
    """Lines on which weights are loaded from a folder or a hub without insisting on safetensors."""
    for node in nodes(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr != "from_pretrained" or WEIGHTLESS.search(dotted(node.func.value)):
            continue
        given = {each.arg for each in node.keywords}
        by_options = None in given and "'use_safetensors': True" in ast.unparse(tree)
        if "use_safetensors" not in given and not by_options:
            yield node.lineno


def test_secrets_are_compared_in_constant_time_alone() -> None:
    found = {name for name, tree in modules().items() if list(compared_secrets(tree))}
    assert found == NOT_SECRET, "use hmac.compare_digest"


def test_code_unpickles_and_evaluates_only_what_its_own_run_made() -> None:
    found = {name: calls for name, tree in modules().items() if (calls := unpickled(tree))}
    assert found == ALLOWED


def test_weights_are_loaded_from_safetensors_alone() -> None:
    found = [f"{name}:{line}" for name, tree in modules().items() for line in careless_weights(tree)]
    assert found == []


@pytest.mark.parametrize(
    "code",
    ["given == token", "self._csrf_token != said", "secret in known", "key.secret_sha256 == hashed", "a == mac(b)"],
)
def test_comparison_of_a_secret_is_found(code: str) -> None:
    assert list(compared_secrets(ast.parse(code))) == [1]


@pytest.mark.parametrize("code", ["pickle.loads(x)", "torch.load(p)", "yaml.load(t)", "eval(x)", "np.load(f)"])
def test_call_that_can_run_code_is_found(code: str) -> None:
    assert unpickled(ast.parse(code))


@pytest.mark.parametrize("code", ["UNet.from_pretrained(p)", "Model.from_pretrained(p, **o)"])
def test_weights_of_any_format_are_found(code: str) -> None:
    assert list(careless_weights(ast.parse(code))) == [1]
