"""Claims: the requests for work, for companions of running attempts, and how a node gives up."""

import logging
import os
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from giornata.agent.attempt.commands import ShutdownSignal
from giornata.agent.engines.engine_process import EngineProcess
from giornata.agent.engines.engines import Engines
from giornata.agent.settings import LEASED_KINDS, AgentSettings
from giornata.agent.transfer.blob_cache import BlobCache
from giornata.agent.transfer.model_reports import ModelReport, ModelReports
from giornata.agent.transfer.model_store import ModelStore
from giornata.agent.transfer.transport import ObjectStorage
from giornata.client.node import NodeClient
from giornata.client.retry import Monotonic, delays_s
from giornata.domain.errors import GiornataError
from giornata.domain.jobs.attempt import most_leases
from giornata.protocol.node.pipe import FreePlaces
from giornata.protocol.node.work import Claim, ClaimReply, NodeInfo

log = logging.getLogger(__name__)

R = TypeVar("R")

# The room in a claim; a user's own engine may say more.
MOST_CHARACTERS = 128
MOST_THINGS = 32
MOST_BACKOFF_S = 60.0
FETCHING_WAIT_S = 1.0
"""A claim waits no longer while a model is fetched ahead: the next claim tells that the model has come."""
REFUSALS = 3
SELDOM = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDeps:
    """Dependencies that the parts of a node and all of its attempts share. `sleep` waits between two tries."""

    settings: AgentSettings
    node: NodeClient
    storage: ObjectStorage
    cache: BlobCache
    models: ModelStore
    model_reports: ModelReports
    engines: Engines
    shutdown: ShutdownSignal
    monotonic_s: Monotonic
    rng: random.Random
    sleep: Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentClaim:
    """A claim, and the moment of its first try by the node's monotonic clock: a lease counts from then."""

    claim: Claim
    sent_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JoiningJob:
    """A job that may join those at work, by its key."""

    joint_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MorePictures:
    """A further lease of pictures, beside those at hand. `base_keys` name the base models of these."""

    base_keys: tuple[str, ...]


FurtherWork = JoiningJob | MorePictures
"""The work that a node asks for while attempts are at work."""


class Claiming:
    """Makes claims, sends them, and repeats what may be repeated."""

    def __init__(self, deps: AgentDeps) -> None:
        self._deps, self._settings, self._engines = deps, deps.settings, deps.engines
        self._answered_at_s = deps.monotonic_s()

    def fresh_delays(self) -> Iterator[float]:
        """Return a fresh sequence of growing pauses, in seconds and at most MOST_BACKOFF_S."""
        return delays_s(self._deps.rng, first_s=1.0, most_s=MOST_BACKOFF_S)

    def next_job(self, unanswered: SentClaim | None = None) -> tuple[ClaimReply | None, float]:
        """Return the server's reply and the moment of the first try. None: the node has to leave before.

        A request whose reply was lost is sent again under the same id: the server gives the same lease again.
        `unanswered` is such a request of before. Raises GaveUp.
        """
        asked = unanswered or self.ask()
        return self.persist(lambda: self.send(asked)), asked.sent_at_s

    def persist(self, call: Callable[[], R]) -> R | None:
        """Repeat a call of the server until it has answered; None when told to leave before. Raises GaveUp."""
        delays, refusals = self.fresh_delays(), 0
        while True:
            try:
                reply = call()
            except GiornataError as error:
                refusals += not error.retryable
                self._failed(error, refusals)
            else:
                self._answered_at_s = self._deps.monotonic_s()
                return reply
            if self._deps.shutdown.requested:
                return None
            self._deps.sleep(next(delays))

    def pause(self) -> None:
        """Wait a little between two tries."""
        self._deps.sleep(next(self.fresh_delays()))

    def ask(self, wanted: "FurtherWork | None" = None) -> SentClaim:
        """Make a claim; while attempts are at work it asks for what is `wanted`, and the server answers at once."""
        return SentClaim(claim=self.request(wanted), sent_at_s=self._deps.monotonic_s())

    def send(self, asked: SentClaim) -> ClaimReply:
        """Send the claim once, and note the time of the answer."""
        reply = self._deps.node.claim(asked.claim)
        self._answered_at_s = self._deps.monotonic_s()
        if asked.claim.held_version is not None:
            self._deps.model_reports.answered(
                known_version=reply.held_version, hint=reply.prefetch, verify=reply.verify
            )
        return reply

    def request(self, wanted: "FurtherWork | None" = None) -> Claim:
        """Build the claim. Raises ValidationError for settings that the server would not take."""
        settings, engine, hello = self._settings, self._engines.current, self._engines.hello
        info = NodeInfo(
            node_id=settings.node_id,
            machine_id=settings.machine_id,
            name=settings.name,
            fleet=settings.fleet,
            instance_id=settings.instance_id,
            places=settings.places,
            pid=os.getpid(),
            engine_pid=engine.pid if engine is not None else None,
            device=hello.device[:MOST_CHARACTERS] if hello is not None else "",
            vram_bytes=hello.vram_bytes if hello is not None else None,
            price_micro_usd_per_hour=settings.price_micro_usd_per_hour,
            versions=dict(list(hello.versions.items())[:MOST_THINGS]) if hello is not None else {},
        )
        held = engine.held if engine is not None else ()
        if isinstance(wanted, MorePictures):
            held = tuple(dict.fromkeys((*wanted.base_keys, *held)))
        leased = tuple(kind for kind in self._engines.kinds if kind in LEASED_KINDS)
        draws = bool(leased) and not isinstance(wanted, JoiningJob)
        in_memory = engine.host_files if engine is not None and engine.is_alive() else ()
        models = self._deps.model_reports.report(in_memory) if draws else ModelReport()
        longest_s = settings.claim_wait_s if models.fetching is None else min(settings.claim_wait_s, FETCHING_WAIT_S)
        return Claim(
            request_id=f"{self._deps.rng.getrandbits(128):032x}",
            node=info,
            kinds=leased if isinstance(wanted, MorePictures) else self._engines.kinds,
            held_models=held[:MOST_THINGS],
            joint_key=wanted.joint_key if isinstance(wanted, JoiningJob) else None,
            max_pictures=settings.max_pictures if draws else 0,
            held_version=models.held_version,
            held=models.held,
            fetching=models.fetching,
            fetching_left_s=models.fetching_left_s,
            damaged=models.damaged,
            wait_s=longest_s if wanted is None else 0.0,
        )

    def _failed(self, error: GiornataError, refusals: int) -> None:
        # One refusal may be of a request that was damaged on its way.
        if refusals >= REFUSALS:
            log.error("the server at %s refuses this node: %s", self._settings.url, error)
            raise GaveUp(ExitCode.UNUSABLE) from error
        silent_s = self._deps.monotonic_s() - self._answered_at_s
        limit_s = self._settings.give_up_after_s
        if limit_s is not None and silent_s >= limit_s:
            log.error("no answer from %s for %.0f s: %s", self._settings.url, silent_s, error)
            raise GaveUp(ExitCode.SERVER_GONE) from error
        log.warning("claim: %s", error)


def wanted_key(engine: EngineProcess | None, engaged: Collection[str], *, places: int, leases: int) -> str | None:
    """Return the key of a job that could join, or None. `engaged` are the attempts that need the engine, or will;
    `leases` counts those that only upload as well.

    Whoever of them is not yet counted by the engine will take one of the places that it has said to be free.
    """
    free_places = None if engine is None or not engine.is_alive() else engine.free_places
    if leases >= most_leases(places):
        return None
    if free_places is None or len(engaged) >= places or not set(engaged) & set(free_places.attempts):
        return None
    return free_places.key if free_places.free > _coming(free_places, engaged) else None


def _coming(free_places: FreePlaces, engaged: Collection[str]) -> int:
    return len(set(engaged) - set(free_places.attempts))


class Companions:
    """Asks for companions while others are at work, or for further pictures: every `every_s` and with jitter.

    Claims become rarer the longer there is nothing, down to a fifth of that: a thousand nodes may ask for work that
    nobody has submitted.

    A request whose reply was lost is repeated under its id, for it may have brought a lease. What the server refuses
    is asked again later: whether the node is welcome at all shows when it asks for its next job.
    """

    def __init__(self, claiming: Claiming, *, every_s: float, rng: random.Random, monotonic_s: Monotonic) -> None:
        self._claiming, self._every_s, self._rng, self._now_s = claiming, every_s, rng, monotonic_s
        self._asked: SentClaim | None = None
        self._pauses = self._fresh_pauses()
        self._delays = claiming.fresh_delays()
        self._not_before_s = monotonic_s()
        self._understood = True

    @property
    def due_in_s(self) -> float:
        """The seconds until the next claim may be sent."""
        return max(0.0, self._not_before_s - self._now_s())

    def rest(self, seconds: float) -> None:
        """Send no claim for so many seconds."""
        self._not_before_s = max(self._not_before_s, self._now_s() + seconds)

    def ask(self, wanted: FurtherWork | None) -> tuple[SentClaim, ClaimReply] | None:
        """Send a claim for a companion. Returns the claim and its reply; None without a claim or without a reply."""
        if self.due_in_s > 0 or not self._understood or (self._asked is None and wanted is None):
            return None
        asked = self._asked = self._asked or self._claiming.ask(wanted)
        try:
            reply = self._claiming.send(asked)
        except GiornataError as error:
            log.warning("claim of a companion: %s", error)
            self.rest(next(self._delays))
            self._asked = asked if error.retryable else None
            return None
        self._asked, self._delays = None, self._claiming.fresh_delays()
        if reply.granted is not None:
            self._pauses = self._fresh_pauses()
        if reply.picture_lease is None:  # what the engine has still to draw bounds leases of pictures by itself
            self.rest(next(self._pauses))
        return asked, reply

    def unanswered(self) -> SentClaim | None:
        """Hand over the request that may still bring a lease."""
        asked, self._asked = self._asked, None
        return asked

    def fits(self, asked: SentClaim, reply: ClaimReply) -> bool:
        """Return True when the lease is for a companion, as requested.

        A server that does not know of companions gives any job, and is not asked again.
        """
        if reply.lease is None:
            self._understood = asked.claim.max_pictures > 0
        else:
            key = asked.claim.joint_key
            self._understood = key is not None and reply.lease.joint_key == key
        return self._understood

    def _fresh_pauses(self) -> Iterator[float]:
        return delays_s(self._rng, first_s=self._every_s, most_s=SELDOM * self._every_s)


class ExitCode(IntEnum):
    """The exit codes of a node. The numbers are those of sysexits.h."""

    DONE = 0
    SERVER_GONE = 69
    UNFIT = 71  # the machine is not fit for the fleet's work, or no longer
    UNUSABLE = 78


class GaveUp(Exception):
    """The node cannot go on; carries the exit code. The reason is logged where it is known."""

    def __init__(self, code: ExitCode) -> None:
        super().__init__(code.name)
        self.code = code
