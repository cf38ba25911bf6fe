"""The report to the server of how an attempt ended, with the reason that the engine's last lines give."""

import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from giornata.agent.attempt.events import Abandoned, AttemptFailed, AttemptOutcome, Finished, Released
from giornata.agent.attempt.lease import LeaseCalls
from giornata.agent.attempt.platform import AttemptProgress
from giornata.client.node import NodeClient
from giornata.client.retry import Until
from giornata.domain.errors import GiornataError, LeaseLost
from giornata.domain.jobs.reasons import Reason
from giornata.domain.machines.log_patterns import find_blame
from giornata.protocol.node.pictures import PictureLease
from giornata.protocol.node.pipe import FaultLine
from giornata.protocol.node.work import AnyLease, CompleteAttempt, FailAttempt, ReleaseAttempt

log = logging.getLogger(__name__)

LONGEST_MESSAGE = 4000
LONGEST_TAIL = 20_000
MOST_TOGETHER = 64
MOST_FAULTS = 1000
LONGEST_EVIDENCE = 500
INSTALLED = (sys.prefix, sys.base_prefix)


class OutcomeReport:
    """Reports an outcome, again and again until the lease ends or `until` has passed."""

    def __init__(self, node: NodeClient, calls: LeaseCalls, progress: AttemptProgress) -> None:
        self._node, self._calls, self._progress = node, calls, progress

    def send(self, outcome: AttemptOutcome, *, tail: Sequence[str], until: Until) -> AttemptOutcome:
        """Send the outcome, and return the one that holds: Abandoned when the server does not take the report."""
        try:
            match outcome:
                case Finished():
                    return self._complete(outcome, until)
                case AttemptFailed():
                    self._fail(outcome, tail, until)
                case Released():
                    self._release(outcome, until)
        except LeaseLost as error:
            return Abandoned(why=str(error))
        except GiornataError as error:
            log.error("the end of the attempt could not be reported: %s", error)
            return Abandoned(why=f"the server does not take the report: {error}")
        return outcome

    def _complete(self, outcome: Finished, until: Until) -> AttemptOutcome:
        report = CompleteAttempt(step=outcome.step, artifacts=self._progress.artifacts, summary=outcome.summary)
        try:
            self._calls.persist(lambda lease: self._node.complete(lease, report), until=until)
        except LeaseLost:
            raise
        except GiornataError as error:
            if error.retryable:
                raise
            # A finished job is never reported as a failure: another attempt resumes at its last checkpoint.
            given_back = Released(reason=Reason.RELEASED, message=f"complete was refused: {error}"[:LONGEST_MESSAGE])
            self._release(given_back, until)
            return given_back
        return outcome

    def _fail(self, outcome: AttemptFailed, tail: Sequence[str], until: Until) -> None:
        faults = tuple(FaultLine(where=each.where, message=each.message, hint=each.hint) for each in outcome.faults)
        report = FailAttempt(
            reason=outcome.reason,
            message=outcome.message[:LONGEST_MESSAGE],
            faults=faults[:MOST_FAULTS],
            exit_code=outcome.exit_code,
            log_tail="\n".join(tail)[-LONGEST_TAIL:],
            step=self._progress.step,
            together=outcome.together[:MOST_TOGETHER],
        )
        self._calls.persist(lambda lease: self._node.fail(lease, report), until=until)

    def _release(self, outcome: Released, until: Until) -> None:
        report = ReleaseAttempt(
            reason=outcome.reason, message=outcome.message[:LONGEST_MESSAGE], step=self._progress.step
        )
        self._calls.persist(lambda lease: self._node.release(lease, report), until=until)


def without_folders(text: str, work_dir: Path) -> str:
    """Return the text with files named from this node's own folders on: where those lie is nobody else's business."""
    for folder in sorted({str(work_dir.absolute()), str(work_dir.resolve()), *INSTALLED}, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.\-/]){re.escape(folder)}/", "", text)
    return text


def explained(outcome: AttemptOutcome, lines: Sequence[str], lease: AnyLease) -> AttemptOutcome:
    """Return the outcome. A crash without a known reason gets the reason that the lines give, and the line itself.

    What was judged already, by the engine or by the node, stands.
    """
    if not isinstance(outcome, AttemptFailed) or outcome.reason is not Reason.CRASHED:
        return outcome
    words = [*lines, *outcome.message.splitlines()]
    found = find_blame(words, exit_code=outcome.exit_code, texts=texts_of(lease))
    if found is None:
        return outcome
    log.warning("the crash is %s by what the engine said: %s", found.reason, found.evidence)
    return AttemptFailed(
        found.reason,
        f"{outcome.message}; the engine's log says: {found.evidence[:LONGEST_EVIDENCE]}",
        faults=outcome.faults,
        exit_code=outcome.exit_code,
        together=outcome.together,
    )


def texts_of(lease: AnyLease) -> Iterator[str]:
    """Yield every text that users have written: prompts, names, captions."""
    if isinstance(lease, PictureLease):
        for picture in lease.pictures:
            yield from _strings(picture.params)
        return
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
