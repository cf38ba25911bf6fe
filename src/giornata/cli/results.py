"""A job's results, fetched into a folder."""

import os
from pathlib import Path

from giornata.cli.hints import giornata
from giornata.cli.output import Output
from giornata.cli.words import size
from giornata.client import Client
from giornata.domain.errors import Fault, NotFound


def folder_faults(folder: Path | None) -> list[Fault]:
    """Why files cannot be put there. The folder need not be there yet, and is not made."""
    if folder is None:
        return []
    there = next(each for each in (folder, *folder.absolute().parents) if os.path.lexists(each))
    hint = "name another folder"
    if not there.is_dir():
        return [Fault(where="--output", message=f"{there} is not a folder", hint=hint)]
    if not os.access(there, os.W_OK | os.X_OK):
        return [Fault(where="--output", message=f"{there} is not writable", hint=hint)]
    return []


def fetch_results(client: Client, job_id: str, folder: Path, out: Output) -> tuple[Path, ...]:
    """Every result, verified. No file of another job is overwritten. Raises NotFound when there is none yet."""
    files = client.download(job_id, folder, keep_others=True)
    if not files:
        raise NotFound(f"{job_id} has no results yet", hint=f"See how far it is with: {giornata('job', job_id)}")
    for file in files:
        out.say(f"{file}  {size(file.stat().st_size)}")
    return files
