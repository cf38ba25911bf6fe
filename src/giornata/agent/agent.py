"""The loop of a node: start an engine, claim a job, run it, and claim again."""

import logging
import random
from collections.abc import Callable
from contextlib import ExitStack

from pydantic import ValidationError

from giornata.agent.attempt.attempt import AttemptRunner
from giornata.agent.attempt.commands import ServerCommands, ShutdownSignal
from giornata.agent.attempt.control_plane import ControlPlane
from giornata.agent.attempt.events import AttemptFailed, AttemptOutcome, Finished, Released
from giornata.agent.attempt.lease import LeaseCalls, LocalLease
from giornata.agent.attempt.picture_platform import PicturePlatform
from giornata.agent.attempt.platform import AttemptProgress, AttemptState, Platform
from giornata.agent.attempt.report import OutcomeReport
from giornata.agent.attempt.running_attempts import EndedAttempt, RunningAttempts, describe, fields_of, name_of
from giornata.agent.claiming import (
    AgentDeps,
    Claiming,
    Companions,
    ExitCode,
    FurtherWork,
    GaveUp,
    JoiningJob,
    MorePictures,
    wanted_key,
)
from giornata.agent.engines.engines import Engines, Launch
from giornata.agent.machine.machine_checks import MachineChecks, Provider
from giornata.agent.machine.node_probes import NodeProbes
from giornata.agent.settings import AgentSettings
from giornata.agent.transfer.blob_cache import BlobCache
from giornata.agent.transfer.model_prefetch import ModelPrefetch, fetch_from
from giornata.agent.transfer.model_reports import ModelReports
from giornata.agent.transfer.model_store import ModelStore
from giornata.agent.transfer.transport import ObjectStorage
from giornata.agent.work_dir import CACHE_DIRECTORY, MODEL_DIRECTORY, JobDir, WorkDir
from giornata.client.node import NodeClient
from giornata.client.retry import Monotonic
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.jobs.reasons import Reason
from giornata.domain.telemetry import log_about
from giornata.protocol.node.pictures import PictureLease
from giornata.protocol.node.work import AnyLease

log = logging.getLogger(__name__)

ENGINE_STARTS = 3
# A server that answers a long poll at once must not be asked in a hot loop.
SOONEST_CLAIM_S = 0.5
# How long a node that is not fit waits before it looks again.
LOOK_AGAIN_S = 30.0
# How often the node looks whether the engine has places for companions.
LOOK_EVERY_S = 0.2
STOP_PREFETCH_S = 5.0
# Leases of pictures at one time, those that only upload included: the bound of the pictures on the disk.
MOST_PICTURE_LEASES = 4


class Agent:
    """Runs one node. `run` returns the exit code. Clock, network, storage and engine are arguments.

    `launch` starts an engine from its command line and must be usable again and again; `sleep` is how the node
    waits between tries, by default until it is told to leave. By `probes` it finds out whether its machine is
    fit for the fleet's work; without them it takes that for granted.

    Its own thread claims; attempts run in threads of theirs. There is one at a time, unless the engine says that
    others may join those at work, or the engine has drawn half of a lease of pictures.
    """

    def __init__(
        self,
        *,
        settings: AgentSettings,
        node: NodeClient,
        storage: ObjectStorage,
        launch: Launch,
        shutdown: ShutdownSignal,
        monotonic_s: Monotonic,
        rng: random.Random,
        sleep: Callable[[float], None] | None = None,
        probes: NodeProbes | None = None,
        provider: Provider | None = None,
    ) -> None:
        self._settings, self._now_s = settings, monotonic_s
        self._shutdown, self._sleep = shutdown, sleep or shutdown.wait
        self.engines = Engines(
            commands=settings.engine_commands(),
            launch=launch,
            hello_s=settings.hello_s,
            stop_grace_s=settings.stop_grace_s,
        )
        models = ModelStore(settings.work_dir / MODEL_DIRECTORY, max_bytes=settings.model_store_bytes)
        self._prefetch = ModelPrefetch(models, fetch_from(storage))
        self._deps = AgentDeps(
            settings=settings,
            node=node,
            storage=storage,
            cache=BlobCache(settings.work_dir / CACHE_DIRECTORY, max_bytes=settings.cache_bytes),
            models=models,
            model_reports=ModelReports(models, self._prefetch),
            engines=self.engines,
            shutdown=shutdown,
            monotonic_s=monotonic_s,
            rng=rng,
            sleep=self._sleep,
        )
        self._claiming = Claiming(self._deps)
        self._companions = Companions(
            self._claiming, every_s=settings.companion_every_s, rng=rng, monotonic_s=monotonic_s
        )
        self._checks = None
        if probes is not None:
            self._checks = MachineChecks(self._deps, claiming=self._claiming, provider=provider, probes=probes)
        self._running = RunningAttempts()
        self._failures = self._claiming.fresh_delays()
        self._failed, self._leaving = False, False
        self._first_came_s = monotonic_s()

    def run(self) -> int:
        """Work until told to leave. Raises InvalidInput when the settings or the work directory are unusable."""
        self._check_settings()
        work_dir = WorkDir(self._settings.work_dir)
        self._prefetch.start()
        try:
            if self._checks is not None:
                self._checks.begin()
            while self._turn(work_dir):
                pass
            return ExitCode.DONE
        except GaveUp as gave_up:
            return gave_up.code
        finally:
            self._end_running()
            self._prefetch.stop(wait_s=STOP_PREFETCH_S)
            self.engines.stop()
            work_dir.close()

    def _end_running(self) -> None:
        """Let running attempts give their jobs back when an error ends the node."""
        if self._running:
            self._shutdown.ask()
        while self._running:
            self._running.next_ended(None)

    def _check_settings(self) -> None:
        """Find out now what every claim would stumble over. Raises InvalidInput."""
        faults = list(self._settings.faults())
        try:
            self._claiming.request()
        except ValidationError as error:
            faults += [Fault(where=".".join(map(str, each["loc"])), message=each["msg"]) for each in error.errors()]
        if faults:
            raise InvalidInput(faults)

    def _turn(self, work_dir: WorkDir) -> bool:
        """Look after running attempts, or claim a job without any. Returns False when the node has to leave."""
        if self._running:
            self._attend(work_dir)
            return True
        if self._leaving or self._shutdown.requested or (self._checks is not None and self._checks.told_to_leave):
            return False
        if (pause_s := self._pause_s()) is not None:
            self._sleep(pause_s)
            return True
        reply, sent_at_s = self._claiming.next_job(self._companions.unanswered())
        if reply is None or (reply.drain and reply.granted is None):
            return False
        if reply.granted is None:
            self._sleep(max(0.0, SOONEST_CLAIM_S - (self._now_s() - sent_at_s)))
            return True
        self._begin(reply.granted, sent_at_s, work_dir)
        return True

    def _warm_up(self) -> None:
        """Start an engine before the first claim, so that no job waits for torch to load. Raises GaveUp."""
        delays = self._claiming.fresh_delays()
        for left in reversed(range(ENGINE_STARTS)):
            try:
                self.engines.ready()
                return
            except InvalidInput as error:
                log.error("%s", error)
                if left == 0 and self._checks is not None:
                    self._checks.give_up(str(error))
                if left == 0 or self._shutdown.requested:
                    raise GaveUp(ExitCode.UNUSABLE) from error
            self._sleep(next(delays))

    def _pause_s(self) -> float | None:
        """Return the pause before the next claim; None when an engine runs and the machine is fit. Raises GaveUp."""
        if self._failed:
            self._failed = False
            return next(self._failures)
        self._warm_up()
        engine = self.engines.current
        free_vram = None if engine is None else engine.free_vram_bytes
        if self._checks is None or self._checks.is_fit(engine_free_vram_bytes=free_vram):
            return None
        # The engine tells the free memory only at its start and after jobs; a node that waits for memory holds none.
        self.engines.stop()
        return LOOK_AGAIN_S

    # ---- those at work

    def _attend(self, work_dir: WorkDir) -> None:
        """Wait for an attempt to end, and claim companions while the engine has places."""
        ended = self._running.next_ended(min(LOOK_EVERY_S, self._companions.due_in_s or LOOK_EVERY_S))
        if ended is not None:
            self._note_ended(ended)
        if self._leaving or self._shutdown.requested or self._running.told_to_leave:
            return
        answered = self._companions.ask(self._wanted()) if self._running else None
        if answered is None:
            return
        asked, reply = answered
        if reply.granted is None:
            self._leaving = reply.drain
        elif self._companions.fits(asked, reply):
            self._begin(reply.granted, asked.sent_at_s, work_dir)
        else:
            message = "the node asked for work that may join that at hand, and this may not"
            self._hand_back(reply.granted, asked.sent_at_s, Released(reason=Reason.RELEASED, message=message))

    def _wanted(self) -> FurtherWork | None:
        """Return what the node could do besides the work at hand; None for nothing."""
        # Without an end to it, jobs with other keys would never have their turn while there are some with this one.
        if self._now_s() - self._first_came_s > self._settings.join_for_s:
            return None
        if (left := self._running.pictures_left) is None:
            running, places = self._running, self._settings.places
            key = wanted_key(self.engines.current, running.engaged, places=places, leases=len(running))
            return None if key is None else JoiningJob(joint_key=key)
        half = max(1, self._settings.max_pictures // 2)
        if left > half or len(self._running) >= MOST_PICTURE_LEASES:
            return None
        return MorePictures(base_keys=self._running.base_keys)

    def _note_ended(self, ended: EndedAttempt) -> None:
        if ended.defect is not None:
            raise ended.defect
        if ended.outcome is not None:
            with log_about(**fields_of(ended.lease)):
                log.info("%s: %s", name_of(ended.lease), describe(ended.outcome))
        self._leaving = self._leaving or ended.told_to_leave
        if isinstance(ended.outcome, Released) and ended.outcome.ordered:
            return  # neither a success nor a failure: the node asks for other work at once
        self._failed = not isinstance(ended.outcome, Finished)
        if not self._failed:
            self._failures = self._claiming.fresh_delays()
        elif self._running:
            self._companions.rest(next(self._failures))

    def _begin(self, lease: AnyLease, sent_at_s: float, work_dir: WorkDir) -> None:
        if isinstance(lease, PictureLease) and not lease.pictures:
            # The reply to its claim was lost, and its pictures have been canceled since.
            self._hand_back(lease, sent_at_s, Finished(step=0, summary={}))
            return
        with log_about(**fields_of(lease)):
            log.info("%s begins", name_of(lease))
        with ExitStack() as stack:
            try:
                job_dir = stack.enter_context(work_dir.job_dir(lease.attempt_id))
            except InvalidInput as error:
                self._hand_back(lease, sent_at_s, AttemptFailed(Reason.NODE_DISK, str(error)))
                raise
            attempt = self._attempt(lease, sent_at_s, job_dir)
            if not self._running:
                self._first_came_s = self._now_s()
            self._running.begin(lease, attempt, stack.pop_all())

    def _attempt(self, lease: AnyLease, sent_at_s: float, job_dir: JobDir) -> AttemptRunner:
        settings = self._settings
        commands = ServerCommands(
            shutdown=self._shutdown,
            monotonic_s=self._now_s,
            grace_s=settings.grace_s,
            release_s=settings.release_s,
        )
        state = AttemptState(commands=commands, monotonic_s=self._now_s)
        platform: Platform
        if isinstance(lease, PictureLease):
            platform = PicturePlatform(lease, granted_at_s=sent_at_s, job_dir=job_dir, state=state, deps=self._deps)
        else:
            platform = ControlPlane(lease, granted_at_s=sent_at_s, job_dir=job_dir, state=state, deps=self._deps)
        return AttemptRunner(platform, state=state, outbox=job_dir.outbox, settings=settings, engines=self.engines)

    def _hand_back(self, lease: AnyLease, sent_at_s: float, outcome: AttemptOutcome) -> None:
        """End a lease whose work has not begun, so that the job need not wait until the lease runs out."""
        held = LocalLease(lease, granted_at_s=sent_at_s, monotonic_s=self._now_s, on_lost=lambda _: None)
        calls = LeaseCalls(held, rng=self._deps.rng, monotonic_s=self._now_s)
        OutcomeReport(self._deps.node, calls, AttemptProgress()).send(outcome, tail=(), until=lambda: None)
