"""Own kinds of job: the command lines of their engines."""

import shlex
from collections.abc import Mapping

from giornata.domain.errors import Fault, InvalidInput, collecting


def workload_commands(workloads: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """`x-NAME` to the words of its command line, split as a shell would. Raises InvalidInput with every one that
    cannot be split."""
    commands: dict[str, tuple[str, ...]] = {}
    faults: list[Fault] = []
    for kind, program in workloads.items():
        with collecting(faults):
            commands[kind] = _words(kind, program)
    if faults:
        raise InvalidInput(faults)
    return commands


def _words(kind: str, program: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(program))
    except ValueError as error:
        hint = "quote it as for a shell"
        raise InvalidInput([Fault(where=f"workloads.{kind}", message=f"{program!r}: {error}", hint=hint)]) from None
