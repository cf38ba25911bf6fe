"""No two modules of the package import each other, not even for types or inside a function."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

from tests.fixtures.parsed_code import modules, nodes


def imports_of(tree: ast.Module, names: set[str]) -> set[str]:
    found = set()
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in names else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & names


def name_of(path: str) -> str:
    return ".".join(("giornata", *Path(path).with_suffix("").parts)).removesuffix(".__init__")


def test_imports_have_no_cycle() -> None:
    trees = {name_of(path): tree for path, tree in modules().items()}
    graph = {name: imports_of(tree, set(trees)) - {name} for name, tree in trees.items()}
    assert len(graph) > 100
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules
