"""The loop of a node: keep an engine warm, claim, work, again."""

import logging
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from enum import IntEnum

from pydantic import ValidationError

from giornata.agent.attempt import Attempt
from giornata.agent.backoff import delays_s
from giornata.agent.blob_cache import BlobCache
from giornata.agent.calls import Calls
from giornata.agent.departure import Departure
from giornata.agent.engines import Engines, Launch
from giornata.agent.events import AttemptFailed
from giornata.agent.held_lease import HeldLease, Monotonic
from giornata.agent.report import Report
from giornata.agent.settings import AgentSettings
from giornata.agent.standing import Dropped, Ending, Finished, GivenBack, Standing
from giornata.agent.surroundings import Surroundings
from giornata.agent.transport import Storage
from giornata.agent.workplace import Workplace
from giornata.client.node import NodeClient
from giornata.domain.errors import Fault, GiornataError, InvalidInput
from giornata.domain.reasons import Reason
from giornata.protocol.work import Claim, ClaimReply, Lease, NodeInfo

log = logging.getLogger(__name__)

# What a claim has room for; an engine of somebody's own may say more.
MOST_CHARACTERS = 128
MOST_THINGS = 32
MOST_BACKOFF_S = 60.0
ENGINE_STARTS = 3
REFUSALS = 3
# A server that answers a long poll at once must not be asked in a hot loop.
SOONEST_CLAIM_S = 0.5


class ExitCode(IntEnum):
    """What the process ends with; the numbers are those of sysexits.h."""

    DONE = 0
    SERVER_GONE = 69
    UNUSABLE = 78


class _GaveUp(Exception):
    """The node cannot go on; carries the exit code. The reason is logged where it is known."""

    def __init__(self, code: ExitCode) -> None:
        super().__init__(code.name)
        self.code = code


class Agent:
    """One node. `run` returns the exit code; everything that it touches of the world is an argument.

    `launch` starts an engine from its command line and must be usable again and again; `sleep` is how the node
    waits between tries, by default until it is told to leave.
    """

    def __init__(
        self,
        *,
        settings: AgentSettings,
        node: NodeClient,
        storage: Storage,
        launch: Launch,
        departure: Departure,
        monotonic_s: Monotonic,
        rng: random.Random,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._settings, self._node, self._storage = settings, node, storage
        self._departure, self._now_s, self._rng = departure, monotonic_s, rng
        self._sleep = sleep or departure.wait
        self.engines = Engines(
            commands=settings.engine_commands(),
            launch=launch,
            hello_s=settings.hello_s,
            stop_grace_s=settings.stop_grace_s,
        )
        self._answered_at_s = monotonic_s()
        self._failures = self._fresh_delays()

    def run(self) -> int:
        """Work until told to leave. Raises InvalidInput when the settings or the work directory are unusable."""
        self._check_settings()
        workplace = Workplace(self._settings.work_dir)
        try:
            around = self._surroundings(workplace)
            while not self._departure.requested:
                if not self._turn(workplace, around):
                    break
            return ExitCode.DONE
        except _GaveUp as gave_up:
            return gave_up.code
        finally:
            self.engines.stop()
            workplace.close()

    def _check_settings(self) -> None:
        """Find out now what every claim would stumble over. Raises InvalidInput."""
        faults = list(self._settings.faults())
        try:
            self._claim_request()
        except ValidationError as error:
            faults += [Fault(where=".".join(map(str, each["loc"])), message=each["msg"]) for each in error.errors()]
        if faults:
            raise InvalidInput(faults)

    def _surroundings(self, workplace: Workplace) -> Surroundings:
        return Surroundings(
            settings=self._settings,
            node=self._node,
            storage=self._storage,
            cache=BlobCache(workplace.cache, max_bytes=self._settings.cache_bytes),
            engines=self.engines,
            departure=self._departure,
            monotonic_s=self._now_s,
            rng=self._rng,
        )

    def _turn(self, workplace: Workplace, around: Surroundings) -> bool:
        """One claim and what comes of it. False when the node shall leave."""
        self._warm_up()
        reply, sent_at_s = self._claim()
        if reply is None or (reply.drain and reply.lease is None):
            return False
        if reply.lease is None:
            self._sleep(max(0.0, SOONEST_CLAIM_S - (self._now_s() - sent_at_s)))
            return True
        ending, leave = self._attempt(reply.lease, sent_at_s, workplace, around)
        if isinstance(ending, Finished):
            self._failures = self._fresh_delays()
        elif not leave:
            self._sleep(next(self._failures))
        return not leave

    def _warm_up(self) -> None:
        """Have an engine before asking for work, so that nobody waits for torch to load. Raises _GaveUp."""
        delays = self._fresh_delays()
        for left in reversed(range(ENGINE_STARTS)):
            try:
                self.engines.ready()
                return
            except InvalidInput as error:
                log.error("%s", error)
                if left == 0 or self._departure.requested:
                    raise _GaveUp(ExitCode.UNUSABLE) from error
            self._sleep(next(delays))

    def _claim(self) -> tuple[ClaimReply | None, float]:
        """The server's reply, and when the request was first sent; None when told to leave before there was one.

        A request whose reply was lost is sent again under the same id: the server gives the same lease again.
        """
        claim, sent_at_s = self._claim_request(), self._now_s()
        delays, refusals = self._fresh_delays(), 0
        while True:
            try:
                reply = self._node.claim(claim)
                self._answered_at_s = self._now_s()
                return reply, sent_at_s
            except GiornataError as error:
                refusals += not error.retryable
                self._claim_failed(error, refusals)
            if self._departure.requested:
                return None, sent_at_s
            self._sleep(next(delays))

    def _claim_failed(self, error: GiornataError, refusals: int) -> None:
        # One refusal may be of a request that was damaged on its way.
        if refusals >= REFUSALS:
            log.error("the server at %s refuses this node: %s", self._settings.url, error)
            raise _GaveUp(ExitCode.UNUSABLE) from error
        silent_s = self._now_s() - self._answered_at_s
        limit_s = self._settings.give_up_after_s
        if limit_s is not None and silent_s >= limit_s:
            log.error("no answer from %s for %.0f s: %s", self._settings.url, silent_s, error)
            raise _GaveUp(ExitCode.SERVER_GONE) from error
        log.warning("claim: %s", error)

    def _claim_request(self) -> Claim:
        settings, engine, hello = self._settings, self.engines.current, self.engines.hello
        info = NodeInfo(
            node_id=settings.node_id,
            machine_id=settings.machine_id,
            name=settings.name,
            fleet=settings.fleet,
            pid=os.getpid(),
            engine_pid=engine.pid if engine is not None else None,
            device=hello.device[:MOST_CHARACTERS] if hello is not None else "",
            vram_bytes=hello.vram_bytes if hello is not None else None,
            price_micro_usd_per_hour=settings.price_micro_usd_per_hour,
            versions=dict(list(hello.versions.items())[:MOST_THINGS]) if hello is not None else {},
        )
        return Claim(
            request_id=f"{self._rng.getrandbits(128):032x}",
            node=info,
            kinds=self.engines.kinds,
            held_models=engine.held[:MOST_THINGS] if engine is not None else (),
            wait_s=settings.claim_wait_s,
        )

    def _attempt(
        self, lease: Lease, sent_at_s: float, workplace: Workplace, around: Surroundings
    ) -> tuple[Ending, bool]:
        """Run the lease. Returns how it ended, and whether the node was told to leave meanwhile."""
        log.info("attempt %d of job %s (%s) begins", lease.attempt, lease.job_id, lease.kind)
        with ExitStack() as stack:
            try:
                room = stack.enter_context(workplace.room(lease.attempt_id))
            except InvalidInput as error:
                self._turn_down(lease, sent_at_s, str(error))
                raise
            attempt = Attempt(lease, granted_at_s=sent_at_s, room=room, around=around)
            ending = attempt.run()
        log.info("attempt %d of job %s: %s", lease.attempt, lease.job_id, describe(ending))
        return ending, attempt.told_to_leave

    def _turn_down(self, lease: Lease, sent_at_s: float, message: str) -> None:
        """Give back a job that this disk has no place for, so that nobody has to wait for the lease to run out."""
        held = HeldLease(lease, granted_at_s=sent_at_s, monotonic_s=self._now_s, on_lost=lambda _: None)
        calls = Calls(held, rng=self._rng, monotonic_s=self._now_s)
        failure = AttemptFailed(Reason.NODE_DISK, message)
        Report(self._node, calls, Standing()).send(failure, tail=(), until=lambda: None)

    def _fresh_delays(self) -> Iterator[float]:
        return delays_s(self._rng, first_s=1.0, most_s=MOST_BACKOFF_S)


def describe(ending: Ending) -> str:
    """One line for the node's own log."""
    match ending:
        case Finished():
            return f"done at step {ending.step}"
        case GivenBack():
            return f"given back ({ending.reason}): {ending.message}"
        case Dropped():
            return f"dropped: {ending.why}"
        case AttemptFailed():
            return f"failed ({ending.reason}): {ending.message}"
