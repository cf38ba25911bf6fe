"""`giornata verify`: checks the signed record of a job, and repeats the job if that is wanted."""

from pathlib import Path
from typing import Annotated

import typer

from giornata.cli.jobs.repeat import RepeatOptions, repeat_job
from giornata.cli.options import CLASS_FOLDER, JsonFlag, optional, settings_of
from giornata.cli.ui.output import Output, reporting
from giornata.client.archives.provenance import verified_provenance
from giornata.domain.errors import InvalidInput
from giornata.domain.jobs.audits import AuditState
from giornata.protocol.provenance import Provenance

CONFIRMED = frozenset({AuditState.CONFIRMED})


def register(app: typer.Typer) -> None:
    """Add the command `verify` to `app`."""
    app.command()(verify)


def verify(
    context: typer.Context,
    record: Annotated[Path, typer.Argument(metavar="FILE", help="Record of giornata job --provenance.")],
    public_key: Annotated[str, typer.Option(metavar="KEY", help="The server's public key, in base64.")],
    lora: Annotated[
        list[Path] | None, optional("LoRA file that the record must name. May be repeated.", metavar="FILE")
    ] = None,
    repeat: Annotated[
        bool, typer.Option("--repeat", help="Train the job again on this machine, and compare the files.")
    ] = False,
    spec: Annotated[
        Path | None, optional("With --repeat: the output of giornata job JOB --json.", metavar="FILE")
    ] = None,
    directory: Annotated[
        Path | None, optional("With --repeat: folder with the job's pictures.", "--data-dir", metavar="DIR")
    ] = None,
    class_directory: Annotated[
        Path | None, optional("With --repeat: folder with the job's own class pictures.", CLASS_FOLDER, metavar="DIR")
    ] = None,
    model: Annotated[
        str | None, optional("With --repeat: base model on this machine. Default: as in the spec.")
    ] = None,
    output: Annotated[
        Path | None,
        optional(
            "With --repeat: folder for the files and checkpoints of the repeat.", "--output", "-o", metavar="DIR"
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Verify the signed record of a job, offline.

    The command checks the signature with the public key, and that the record names each file of --lora.

    With --repeat the command trains the job again on this machine, without a server. The exit code is 0 when the LoRA
    files have the same bytes, and 1 when they differ under equal conditions. It is 4 when device, versions or base
    differ as well: then the repeat proves nothing. The same command resumes a repeat that was killed.
    """
    with reporting(as_json) as out:
        asked = RepeatOptions(
            spec=spec, directory=directory, class_directory=class_directory, model=model, output=output
        )
        if not repeat and (faults := asked.misplaced()):
            raise InvalidInput(faults)
        found = verified_provenance(record, public_key=public_key, files=lora or ())
        _say(found, out)
        if not repeat:
            out.result(found)
        elif code := repeat_job(found, asked, settings_of(context), out):
            raise typer.Exit(code)


def _say(found: Provenance, out: Output) -> None:
    audited = [each for each in found.audits if each.state in CONFIRMED]
    out.say(f"{found.job_id} is {found.state}, and the record is signed by this key")
    out.say(f"  checkpoints {len(found.checkpoints)}")
    out.say(f"  audits      {len(found.audits)}, of which {len(audited)} confirmed")
    for each in audited:
        out.say(f"              steps {each.from_step + 1} to {each.to_step}")
    if found.suspect:
        out.say("  in doubt    an audit contradicts a machine that made part of the result")
