"""`giornata verify`: checks the signed record of a job."""

from pathlib import Path
from typing import Annotated

import typer

from giornata.cli.options import JsonFlag
from giornata.cli.ui.output import reporting
from giornata.client.provenance import verified_provenance
from giornata.domain.audits import AuditState

CONFIRMED = frozenset({AuditState.CONFIRMED})


def register(app: typer.Typer) -> None:
    """Add the command `verify` to `app`."""
    app.command()(verify)


def verify(
    record: Annotated[Path, typer.Argument(metavar="FILE", help="Record of giornata job --provenance.")],
    public_key: Annotated[str, typer.Option(metavar="KEY", help="The server's public key, in base64.")],
    lora: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A file that the record has to name; may be repeated.", show_default=False),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Verify the signed record of a job, offline.

    The signature has to be of this key, and each file has to be one that the record names.
    """
    with reporting(as_json) as out:
        found = verified_provenance(record, public_key=public_key, files=lora or ())
        audited = [each for each in found.audits if each.state in CONFIRMED]
        out.say(f"{found.job_id} is {found.state}, and the record is signed by this key")
        out.say(f"  checkpoints {len(found.checkpoints)}")
        out.say(f"  audits      {len(found.audits)}, of which {len(audited)} confirmed")
        for each in audited:
            out.say(f"              steps {each.from_step + 1} to {each.to_step}")
        if found.suspect:
            out.say("  in doubt    an audit contradicts a machine that made part of the result")
        out.result(found)
