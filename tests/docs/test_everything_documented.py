"""What a user can meet is documented: metrics, reasons, answers to claims.

Other tests hold the rest: test_generated.py settings and commands, tests/contract/http/test_document.py routes, error
codes, states and events of jobs, test_webhook_pages.py events of operators, tests/unit/deploy/test_monitoring.py
alerts, tests/contract/agent/test_protocol_page.py messages of the node's protocol.
"""

import ast
import re
from pathlib import Path

import pytest
from tests.fixtures.parsed_code import modules, nodes

from giornata.domain.jobs.admission import Answer
from giornata.domain.jobs.reasons import Reason

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def constants(folder: str, pattern: str) -> set[str]:
    """Every text of that form in the code of a folder."""
    return {
        node.value
        for file, tree in modules().items()
        for node in (nodes(tree) if file.startswith(folder) else ())
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(pattern, node.value)
    }


def test_every_metric_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "api.md").read_text()
    names = constants("api/", r"giornata_[a-z_]+")
    assert len(names) > 25
    assert sorted(name for name in names if not re.search(rf"`{name}(_total)?`", page)) == []


def claim_reasons() -> set[str]:
    """Every reason that a server gives to a node without a lease."""
    found = {answer.value for answer in Answer if answer not in (Answer.YES, Answer.CANARY)}
    for file, tree in modules().items():
        for node in nodes(tree) if file.startswith("control/attempts/") else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ClaimReply":
                named = [each.value for each in node.keywords if each.arg == "reason"]
                found |= {each.value for each in named if isinstance(each, ast.Constant)}
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
                (target, *_) = node.targets
                if isinstance(target, ast.Name) and target.id == "details":
                    found |= {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
    return found


def test_every_reason_why_a_node_gets_nothing_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "api.md").read_text()
    section = page.partition("## Why a node gets nothing")[2].partition("\n## ")[0]
    assert len(claim_reasons()) >= 12
    assert sorted(reason for reason in claim_reasons() if f"`{reason}`" not in section) == []


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_row(reason: Reason) -> None:
    assert f"\n| `{reason}` |" in (DOCS / "architecture.md").read_text()
