"""A crash that the engine's last words explain."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from giornata.agent.events import AttemptFailed
from giornata.agent.standing import Ending
from giornata.domain.log_patterns import find_blame
from giornata.domain.reasons import Reason
from giornata.protocol.work import Lease

log = logging.getLogger(__name__)

LONGEST_EVIDENCE = 500


def explained(ending: Ending, lines: Sequence[str], lease: Lease) -> Ending:
    """The same ending; a crash that nobody has judged gets the reason that the lines give, with the line beside it.

    What was judged already, by the engine or by the node, stands.
    """
    if not isinstance(ending, AttemptFailed) or ending.reason is not Reason.CRASHED:
        return ending
    words = [*lines, *ending.message.splitlines()]
    found = find_blame(words, exit_code=ending.exit_code, texts=texts_of(lease))
    if found is None:
        return ending
    log.warning("the crash is %s by what the engine said: %s", found.reason, found.evidence)
    return AttemptFailed(
        found.reason,
        f"{ending.message}; the engine's log says: {found.evidence[:LONGEST_EVIDENCE]}",
        faults=ending.faults,
        exit_code=ending.exit_code,
        together=ending.together,
    )


def texts_of(lease: Lease) -> Iterator[str]:
    """Everything that the user has written: prompts, names, captions."""
    yield lease.job_name
    yield from _strings(lease.spec)
    for each in lease.inputs:
        yield each.name
        yield each.caption or ""


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _all_strings([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        yield from _all_strings(value)


def _all_strings(values: Iterable[Any]) -> Iterator[str]:
    for each in values:
        yield from _strings(each)
