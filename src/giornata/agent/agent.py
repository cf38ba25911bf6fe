"""The loop of a node: keep an engine warm, claim, work, again."""

import logging
import random
from collections.abc import Callable
from contextlib import ExitStack

from pydantic import ValidationError

from giornata.agent.at_work import AtWork, Over
from giornata.agent.attempt import Attempt
from giornata.agent.blob_cache import BlobCache
from giornata.agent.calls import Calls
from giornata.agent.claiming import Claiming
from giornata.agent.companions import Companions, wanted_key
from giornata.agent.departure import Departure
from giornata.agent.engines import Engines, Launch
from giornata.agent.events import AttemptFailed
from giornata.agent.exits import ExitCode, GaveUp
from giornata.agent.fitness import Fitness
from giornata.agent.held_lease import HeldLease, Monotonic
from giornata.agent.instruments import Instruments
from giornata.agent.provider import NoProvider, Provider
from giornata.agent.report import Report
from giornata.agent.settings import AgentSettings
from giornata.agent.standing import Dropped, Ending, Finished, GivenBack, Standing
from giornata.agent.surroundings import Surroundings
from giornata.agent.transport import Storage
from giornata.agent.workplace import Workplace
from giornata.client.node import NodeClient
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.reasons import Reason
from giornata.domain.telemetry import log_about
from giornata.protocol.work import Lease

log = logging.getLogger(__name__)

ENGINE_STARTS = 3
# A server that answers a long poll at once must not be asked in a hot loop.
SOONEST_CLAIM_S = 0.5
# How long a node that is not fit waits before it looks again.
LOOK_AGAIN_S = 30.0
# How often the node looks whether the engine has places for companions.
LOOK_EVERY_S = 0.2


class Agent:
    """One node. `run` returns the exit code; everything that it touches of the world is an argument.

    `launch` starts an engine from its command line and must be usable again and again; `sleep` is how the node
    waits between tries, by default until it is told to leave. By `instruments` it finds out whether its machine is
    fit for the fleet's work; without them it takes that for granted.

    Its own thread claims; attempts run in threads of theirs. There is one at a time, unless the engine says that
    others may join those at work.
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
        instruments: Instruments | None = None,
        provider: Provider | None = None,
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
        self._claiming = Claiming(
            settings=settings,
            node=node,
            engines=self.engines,
            departure=departure,
            monotonic_s=monotonic_s,
            rng=rng,
            sleep=self._sleep,
        )
        self._companions = Companions(
            self._claiming, every_s=settings.companion_every_s, rng=rng, monotonic_s=monotonic_s
        )
        self._fitness = None
        if instruments is not None:
            self._fitness = Fitness(
                settings=settings,
                node=node,
                storage=storage,
                claiming=self._claiming,
                provider=provider or NoProvider(),
                instruments=instruments,
                monotonic_s=monotonic_s,
                sleep=self._sleep,
            )
        self._at_work = AtWork()
        self._failures = self._claiming.fresh_delays()
        self._failed, self._leaving = False, False
        self._first_came_s = monotonic_s()

    def run(self) -> int:
        """Work until told to leave. Raises InvalidInput when the settings or the work directory are unusable."""
        self._check_settings()
        workplace = Workplace(self._settings.work_dir)
        try:
            if self._fitness is not None:
                self._fitness.begin()
            around = self._surroundings(workplace)
            while self._turn(workplace, around):
                pass
            return ExitCode.DONE
        except GaveUp as gave_up:
            return gave_up.code
        finally:
            self._see_off()
            self.engines.stop()
            workplace.close()

    def _see_off(self) -> None:
        """Let those that are still at work give their jobs back: the node ends by an error."""
        if self._at_work:
            self._departure.ask()
        while self._at_work:
            self._at_work.next_over(None)

    def _check_settings(self) -> None:
        """Find out now what every claim would stumble over. Raises InvalidInput."""
        faults = list(self._settings.faults())
        try:
            self._claiming.request()
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
        """A look at those at work, or a claim when there are none. False when the node shall leave."""
        if self._at_work:
            self._attend(workplace, around)
            return True
        if self._leaving or self._departure.requested or (self._fitness is not None and self._fitness.told_to_leave):
            return False
        if (pause_s := self._pause_s()) is not None:
            self._sleep(pause_s)
            return True
        reply, sent_at_s = self._claiming.next_job(self._companions.unanswered())
        if reply is None or (reply.drain and reply.lease is None):
            return False
        if reply.lease is None:
            self._sleep(max(0.0, SOONEST_CLAIM_S - (self._now_s() - sent_at_s)))
            return True
        self._begin(reply.lease, sent_at_s, workplace, around)
        return True

    def _warm_up(self) -> None:
        """Have an engine before asking for work, so that nobody waits for torch to load. Raises GaveUp."""
        delays = self._claiming.fresh_delays()
        for left in reversed(range(ENGINE_STARTS)):
            try:
                self.engines.ready()
                return
            except InvalidInput as error:
                log.error("%s", error)
                if left == 0 and self._fitness is not None:
                    self._fitness.give_up(str(error))
                if left == 0 or self._departure.requested:
                    raise GaveUp(ExitCode.UNUSABLE) from error
            self._sleep(next(delays))

    def _pause_s(self) -> float | None:
        """How long not to claim; None: an engine is there, and the machine is fit. Raises GaveUp."""
        if self._failed:
            self._failed = False
            return next(self._failures)
        self._warm_up()
        engine = self.engines.current
        free_vram = None if engine is None else engine.free_vram_bytes
        if self._fitness is None or self._fitness.is_fit(engine_free_vram_bytes=free_vram):
            return None
        # It says only at its start and after jobs what is free; and whoever waits for memory should hold none.
        self.engines.stop()
        return LOOK_AGAIN_S

    # ---- those at work

    def _attend(self, workplace: Workplace, around: Surroundings) -> None:
        """Wait for one to end; ask for companions where the engine has places."""
        over = self._at_work.next_over(min(LOOK_EVERY_S, self._companions.due_in_s or LOOK_EVERY_S))
        if over is not None:
            self._take_leave(over)
        if self._leaving or self._departure.requested or self._at_work.told_to_leave:
            return
        granted = self._companions.ask(self._wanted_key()) if self._at_work else None
        if granted is None:
            return
        asked, reply = granted
        if reply.lease is None:
            self._leaving = reply.drain
        elif self._companions.fits(asked, reply.lease):
            self._begin(reply.lease, asked.sent_at_s, workplace, around)
        else:
            message = "the node asked for a job that may join those at work, and this one may not"
            self._hand_back(reply.lease, asked.sent_at_s, GivenBack(reason=Reason.RELEASED, message=message))

    def _wanted_key(self) -> str | None:
        # Without an end to it, jobs with other keys would never have their turn while there are some with this one.
        if self._now_s() - self._first_came_s > self._settings.join_for_s:
            return None
        return wanted_key(self.engines.current, self._at_work.engaged, places=self._settings.places)

    def _take_leave(self, over: Over) -> None:
        if over.defect is not None:
            raise over.defect
        if over.ending is not None:
            with log_about(job=over.lease.job_id, attempt=over.lease.attempt_id):
                log.info("attempt %d of job %s: %s", over.lease.attempt, over.lease.job_id, describe(over.ending))
        self._leaving = self._leaving or over.told_to_leave
        if isinstance(over.ending, GivenBack) and over.ending.ordered:
            return  # neither a success nor a failure: the node asks for other work at once
        self._failed = not isinstance(over.ending, Finished)
        if not self._failed:
            self._failures = self._claiming.fresh_delays()
        elif self._at_work:
            self._companions.rest(next(self._failures))

    def _begin(self, lease: Lease, sent_at_s: float, workplace: Workplace, around: Surroundings) -> None:
        with log_about(job=lease.job_id, attempt=lease.attempt_id):
            log.info("attempt %d of job %s (%s) begins", lease.attempt, lease.job_id, lease.kind)
        with ExitStack() as stack:
            try:
                room = stack.enter_context(workplace.room(lease.attempt_id))
            except InvalidInput as error:
                self._hand_back(lease, sent_at_s, AttemptFailed(Reason.NODE_DISK, str(error)))
                raise
            attempt = Attempt(lease, granted_at_s=sent_at_s, room=room, around=around)
            if not self._at_work:
                self._first_came_s = self._now_s()
            self._at_work.begin(lease, attempt, stack.pop_all())

    def _hand_back(self, lease: Lease, sent_at_s: float, ending: Ending) -> None:
        """End a lease that is not begun, so that nobody has to wait for it to run out."""
        held = HeldLease(lease, granted_at_s=sent_at_s, monotonic_s=self._now_s, on_lost=lambda _: None)
        calls = Calls(held, rng=self._rng, monotonic_s=self._now_s)
        Report(self._node, calls, Standing()).send(ending, tail=(), until=lambda: None)


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
            others = f", together with {len(ending.together) - 1} others" if ending.together else ""
            return f"failed ({ending.reason}{others}): {ending.message}"
