"""The job that a person means: by its id, the beginning of its id, its name, or `last`."""

import re
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from giornata.cli.settings.hints import giornata
from giornata.cli.ui.text import ago, standing
from giornata.domain.errors import Fault, InvalidInput, NotFound
from giornata.protocol.jobs import Job

if TYPE_CHECKING:
    from giornata.client import Client

WHOLE_ID = re.compile(r"job_[0-9a-z]{26}", re.ASCII)
LAST = "last"
LISTED = 10
LONGEST_NAME = 128


def find_job(client: "Client", word: str) -> str:
    """The id of that job. A whole id is taken as it is, without a request.

    Raises NotFound when no job is meant, and InvalidInput with the candidates when several are.
    """
    if WHOLE_ID.fullmatch(word):
        return word
    if word == LAST:
        return _last(client)
    if not 0 < len(word) <= LONGEST_NAME:
        raise _none(word)
    # A server that does not know `match` sends all jobs.
    found = list(islice((job for job in client.jobs(match=word) if _is_meant(job, word)), LISTED + 1))
    exact = [job for job in found if job.id == word]
    if len(exact or found) != 1:
        raise _none(word) if not found else _several(word, found)
    return (exact or found)[0].id


def _is_meant(job: Job, word: str) -> bool:
    return job.name == word or job.id.startswith((word, f"job_{word}"))


def _last(client: "Client") -> str:
    newest = next(iter(client.jobs()), None)
    if newest is None:
        raise NotFound("there is no job yet", hint=f"Start one: {giornata('train', '--help')}")
    return newest.id


def _none(word: str) -> NotFound:
    message = f"no job matches {word!r}: it is not an id, the beginning of an id, or a name"
    return NotFound(message, hint=f"List the jobs with: {giornata('jobs')}")


def _several(word: str, found: Sequence[Job]) -> InvalidInput:
    lines = [
        Fault(where=job.id, message=f"{job.name}, {standing(job)}, submitted {ago(job.created_at)}")
        for job in found[:LISTED]
    ]
    number = f"{len(found)}" if len(found) <= LISTED else f"more than {LISTED}"
    hint = "give a longer part of the id of one of these jobs"
    return InvalidInput([Fault(where="JOB", message=f"{word} matches {number} jobs", hint=hint), *lines])
