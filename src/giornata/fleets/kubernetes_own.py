"""Whether the pods that a workload describes take the work that the fleet's table says.

The operator's own workload may say anything, and one of ours what the table said before.
"""

from typing import Any

from giornata.fleets.kubernetes_pods import CONTAINER
from giornata.fleets.node_work import KINDS, PLACES, NodeWork

ARGUMENTS = {KINDS: "--kind", PLACES: "--places"}


def missing_in_pods(workload: Any, work: NodeWork) -> str:
    """The variables that the container has to have, as NAME='VALUE'; empty when pods take the work. What comes from a
    ConfigMap or a Secret, or is said by an argument, is not looked into."""
    containers = workload.spec.template.spec.containers
    node = next((each for each in containers if each.name == CONTAINER), containers[0])
    had = {each.name: each for each in node.env or ()}
    plain = {name: each.value or "" for name, each in had.items()}
    words = [*(node.command or ()), *(node.args or ())]
    wanted = work.environment("")
    for name, argument in ARGUMENTS.items():
        elsewhere = had[name].value_from if name in had else node.env_from
        if elsewhere or any(word.startswith(argument) for word in words):
            plain[name] = wanted[name]
    return " ".join(work.missing_in(plain))
