"""No two modules of the package import each other, not even for types or inside a function."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src"


def imports_of(path: Path, modules: dict[str, Path]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(modules)


def test_imports_have_no_cycle() -> None:
    paths = sorted((ROOT / "giornata").rglob("*.py"))
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths
    }
    graph = {name: imports_of(path, modules) - {name} for name, path in modules.items()}
    assert len(graph) > 100
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules
