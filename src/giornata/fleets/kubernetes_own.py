"""Whether a workload that the operator made tells its pods the work that the fleet's table says."""

import json
from typing import Any

from giornata.fleets.kubernetes_pods import CONTAINER
from giornata.fleets.node_work import KINDS, PLACES, NodeWork

# What a node takes that is told nothing, and the argument that tells it otherwise.
UNTOLD = {KINDS: ('["train"]', "--kind"), PLACES: ("1", "--places")}


def told_otherwise(workload: Any, work: NodeWork) -> str:
    """The variables that the container has to have, as NAME=VALUE; empty when nothing is to be changed. What comes
    from a ConfigMap or a Secret, or is said by an argument, is not looked into."""
    containers = workload.spec.template.spec.containers
    node = next((each for each in containers if each.name == CONTAINER), containers[0])
    had = {each.name: each for each in node.env or ()}
    words = [*(node.command or ()), *(node.args or ())]
    missing = []
    for name, (untold, argument) in UNTOLD.items():
        variable = had.get(name)
        elsewhere = node.env_from if variable is None else variable.value_from
        if elsewhere or any(word.startswith(argument) for word in words):
            continue
        wanted = work.environment("")[name]
        if _read(untold if variable is None else variable.value) != _read(wanted):
            missing.append(f"{name}='{wanted}'")
    return " ".join(missing)


def _read(value: str | None) -> Any:
    """A list in any order. What is no JSON stays as it is, and equals nothing that is wanted."""
    try:
        read = json.loads(value or "")
    except ValueError:
        return value
    return sorted(map(str, read)) if isinstance(read, list) else read
