"""Exported audit logs: JSON Lines with the rows of one or more chains, each chain followed by its head."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from giornata.domain.accounts.audit_log import ChainCheck, ChainLink
from giornata.domain.errors import Fault, InvalidInput

HINT = "give a file that giornata audit-log export wrote"


def exported_lines(path: Path, *, where: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file. Raises InvalidInput for a file that is no export, at its line."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                found = _object(line)
                if found is None:
                    raise InvalidInput([Fault(where=where, message=f"line {number} is no JSON object", hint=HINT)])
                yield found
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput([Fault(where=where, message=f"{path} cannot be read: {error}", hint=HINT)]) from None


def heads_of(path: Path, *, where: str) -> dict[str, ChainLink]:
    """Return the heads that a file names, by project. Raises InvalidInput for a file that names none."""
    found = {}
    for line in exported_lines(path, where=where):
        if "head" in line:
            project_id, head = _head(line["head"], where=where)
            found[project_id] = head
    if not found:
        raise InvalidInput([Fault(where=where, message=f"{path} names no head", hint=HINT)])
    return found


def checked(lines: Iterable[Mapping[str, Any]], known: Mapping[str, ChainLink], *, where: str) -> ChainCheck:
    """Check every chain, and that each ends with its head. `known` are heads that were noted earlier.

    Raises InvalidInput for lines that end before a head: the file was cut off.
    """
    check = ChainCheck(known=known)
    open_chains: set[str] = set()
    for line in lines:
        if "head" in line:
            project_id, head = _head(line["head"], where=where)
            check.end(project_id, head)
            open_chains.discard(project_id)
        else:
            open_chains.add(str(line.get("project_id")))
            check.add(line)
    if open_chains:
        message = f"the rows of {', '.join(sorted(open_chains))} end without a head: it was cut off"
        raise InvalidInput([Fault(where=where, message=message, hint="export it again")])
    return check


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _head(head: Any, *, where: str) -> tuple[str, ChainLink]:
    match head:
        case {"project_id": str(project_id), "number": int(number), "sha256": str(sha256)}:
            return project_id, ChainLink(number=number, sha256=sha256)
    raise InvalidInput([Fault(where=where, message="a head names no project, number and sha256", hint=HINT)])
