"""Telling the server how an attempt ended."""

import logging
from collections.abc import Sequence

from giornata.agent.calls import Calls, Until
from giornata.agent.events import AttemptFailed
from giornata.agent.standing import Dropped, Ending, Finished, GivenBack, Standing
from giornata.client.node import NodeClient
from giornata.domain.errors import GiornataError, LeaseLost
from giornata.domain.reasons import Reason
from giornata.protocol.pipe import FaultLine
from giornata.protocol.work import CompleteAttempt, FailAttempt, ReleaseAttempt

log = logging.getLogger(__name__)

LONGEST_MESSAGE = 4000
LONGEST_TAIL = 20_000
MOST_TOGETHER = 64
MOST_FAULTS = 1000


class Report:
    """Reports an ending, again and again until the lease ends or `until` has passed."""

    def __init__(self, node: NodeClient, calls: Calls, standing: Standing) -> None:
        self._node, self._calls, self._standing = node, calls, standing

    def send(self, ending: Ending, *, tail: Sequence[str], until: Until) -> Ending:
        """Returns how it ended in truth: Dropped when the server could not be told, or knows better."""
        try:
            match ending:
                case Finished():
                    return self._complete(ending, until)
                case AttemptFailed():
                    self._fail(ending, tail, until)
                case GivenBack():
                    self._release(ending, until)
        except LeaseLost as error:
            return Dropped(why=str(error))
        except GiornataError as error:
            log.error("the end of the attempt could not be reported: %s", error)
            return Dropped(why=f"the server does not take the report: {error}")
        return ending

    def _complete(self, ending: Finished, until: Until) -> Ending:
        report = CompleteAttempt(step=ending.step, artifacts=self._standing.artifacts, summary=ending.summary)
        try:
            self._calls.persist(lambda lease: self._node.complete(lease, report), until=until)
        except LeaseLost:
            raise
        except GiornataError as error:
            if error.retryable:
                raise
            # A finished job is never reported as a failure: another attempt resumes at its last checkpoint.
            given_back = GivenBack(reason=Reason.RELEASED, message=f"complete was refused: {error}"[:LONGEST_MESSAGE])
            self._release(given_back, until)
            return given_back
        return ending

    def _fail(self, ending: AttemptFailed, tail: Sequence[str], until: Until) -> None:
        faults = tuple(FaultLine(where=each.where, message=each.message, hint=each.hint) for each in ending.faults)
        report = FailAttempt(
            reason=ending.reason,
            message=ending.message[:LONGEST_MESSAGE],
            faults=faults[:MOST_FAULTS],
            exit_code=ending.exit_code,
            log_tail="\n".join(tail)[-LONGEST_TAIL:],
            step=self._standing.step,
            together=ending.together[:MOST_TOGETHER],
        )
        self._calls.persist(lambda lease: self._node.fail(lease, report), until=until)

    def _release(self, ending: GivenBack, until: Until) -> None:
        report = ReleaseAttempt(
            reason=ending.reason, message=ending.message[:LONGEST_MESSAGE], step=self._standing.step
        )
        self._calls.persist(lambda lease: self._node.release(lease, report), until=until)
