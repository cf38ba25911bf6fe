"""The commands of `giornata audit-log`: list, export and verify.

An export is JSON Lines: the rows of one or more chains, each chain followed by its head.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from giornata.cli.options import JsonFlag, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.settings.private_files import private_file
from giornata.cli.ui.output import EXIT_FAILED, Output, reporting
from giornata.cli.ui.text import ago, count
from giornata.domain.accounts.audit_log import AuditVerb, ChainCheck, ChainLink
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.account.audit_log import AuditLogEntry

if TYPE_CHECKING:
    from giornata.client import Client

HINT = "give a file that giornata audit-log export wrote"
MOST_SHOWN = 100
INSTANTS = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]
Project = Annotated[
    str | None,
    typer.Option(metavar="PROJECT", help="Id of the project. Default: the project of the key.", show_default=False),
]
AllProjects = Annotated[bool, typer.Option("--all", help="Take all projects. Only for operators.")]


def register(app: typer.Typer) -> None:
    """Add the command group `audit-log` to `app`."""
    audit_log = typer.Typer(no_args_is_help=True, help="Show who changed what; verify that nothing was altered.")
    audit_log.command("list")(list_entries)
    audit_log.command("export")(export)
    audit_log.command("verify")(verify)
    app.add_typer(audit_log, name="audit-log")


def list_entries(
    context: typer.Context,
    actor: Annotated[
        str | None, typer.Option(metavar="ID", help="Only changes by this person or key.", show_default=False)
    ] = None,
    verb: Annotated[
        AuditVerb | None,
        typer.Option(metavar="VERB", help="Only changes of this kind, such as job.cancel.", show_default=False),
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="ID", help="Only changes of this job, key, member ….", show_default=False)
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            formats=INSTANTS, metavar="TIME", help="Only changes at or after this time, in UTC.", show_default=False
        ),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(
            formats=INSTANTS, metavar="TIME", help="Only changes before this time, in UTC.", show_default=False
        ),
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(metavar="PROJECT", help="Only changes in this project. Only for operators.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of changes.")] = MOST_SHOWN,
    as_json: JsonFlag = False,
) -> None:
    """List who changed what, newest first."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        found = client.audit_log(actor=actor, verb=verb, target=target, since=since, until=until, project_id=project)
        entries = list(islice(found, limit))
        headers = ("when", "project", "actor", "key", "address", "verb", "target", "changes")
        out.table(headers, [_row(each) for each in entries], prose=(7,), spare=(4, 3, 1))
        out.result({"items": [each.model_dump(mode="json") for each in entries]})


def _row(entry: AuditLogEntry) -> tuple[str, ...]:
    changes = ", ".join(f"{name}={_said(value)}" for name, value in entry.changes.items() if value is not None)
    actor = f"{entry.actor_kind} {entry.actor}".strip()
    return (
        ago(entry.at),
        entry.project_id,
        actor,
        entry.key_id,
        entry.address,
        entry.verb,
        entry.target,
        changes,
    )


def _said(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def export(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write, as JSON Lines.", show_default=False)],
    project: Project = None,
    all_projects: AllProjects = False,
    as_json: JsonFlag = False,
) -> None:
    """Write the audit log to a file.

    The log of each project ends with its head, the hash of the last row. Keep the file where the server's operators
    cannot change it.
    """
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        heads: list[Any] = []
        with private_file(file) as to:
            for line in _chains(client, project, all_projects=all_projects):
                to.write(json.dumps(line, separators=(",", ":")) + "\n")
                heads += [line["head"]] if "head" in line else []
        out.say(f"{count(sum(each['number'] for each in heads), 'row')} written to {file}")
        for each in heads:
            out.say(f"  head of {each['project_id']}: row {each['number']}, sha256 {each['sha256']}")
        out.hint(f"  verify it  {giornata('audit-log', 'verify', str(file))}")
        out.result({"file": str(file), "heads": heads})


def verify(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="File from `giornata audit-log export`. Default: the log on the server.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Earlier export, whose newest rows must be in the log unchanged.", show_default=False
        ),
    ] = None,
    project: Project = None,
    all_projects: AllProjects = False,
    as_json: JsonFlag = False,
) -> None:
    """Verify that no row was changed, deleted, added or moved.

    With a FILE the command asks no server. The exit status is 0 for a sound log, and 1 for a broken one.
    """
    with reporting(as_json) as out:
        known = {} if against is None else heads_of(against, where="--against")
        if file is not None:
            check = checked(exported_lines(file, where="FILE"), known, where="FILE")
        else:
            with connect(settings_of(context)) as client:
                check = checked(_chains(client, project, all_projects=all_projects), known, where="server")
        _say(out, check)
    if check.faults:
        raise typer.Exit(EXIT_FAILED)


def _chains(client: "Client", project: str | None, *, all_projects: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows and the head of each chain."""
    wanted = [each.project_id for each in client.audit_log_heads()] if all_projects else [project]
    for project_id in wanted:
        yield from client.export_audit_log(project_id=project_id)


def _say(out: Output, check: ChainCheck) -> None:
    for fault in check.first_faults():
        out.say(f"the chain of {fault.project_id} is broken at row {fault.number}: {fault.why}")
    if not check.faults:
        out.say(f"the log is sound: {count(check.rows, 'row')}")
    for project_id, end in sorted(check.ends.items()):
        if project_id not in check.faults:
            out.say(f"  head of {project_id}: row {end.number}, sha256 {end.sha256}")
    faults = [{"project_id": each.project_id, "row": each.number, "why": each.why} for each in check.first_faults()]
    heads = [
        {"project_id": each, "number": end.number, "sha256": end.sha256} for each, end in sorted(check.ends.items())
    ]
    out.result({"sound": not check.faults, "rows": check.rows, "faults": faults, "heads": heads})


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
        raise InvalidInput([Fault(where=where, message=f"{path} has no line with a head", hint=HINT)])
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
