"""Own kinds of job: the command lines of their engines."""

import shlex
from collections.abc import Mapping


def workload_commands(workloads: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """`x-NAME` to the words of its command line, split as a shell would."""
    return {kind: tuple(shlex.split(program)) for kind, program in workloads.items()}
