"""Asking the server for work."""

import logging
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from giornata.agent.backoff import delays_s
from giornata.agent.departure import Departure
from giornata.agent.engines import Engines
from giornata.agent.exits import ExitCode, GaveUp
from giornata.agent.held_lease import Monotonic
from giornata.agent.settings import AgentSettings
from giornata.client.node import NodeClient
from giornata.domain.errors import GiornataError
from giornata.protocol.work import Claim, ClaimReply, NodeInfo

log = logging.getLogger(__name__)

R = TypeVar("R")

# What a claim has room for; an engine of somebody's own may say more.
MOST_CHARACTERS = 128
MOST_THINGS = 32
MOST_BACKOFF_S = 60.0
REFUSALS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A claim, and when it was first sent, by the node's monotonic clock: a lease counts from then."""

    claim: Claim
    sent_at_s: float


class Claiming:
    """Makes claims and sends them. `sleep` is how it waits between tries."""

    def __init__(
        self,
        *,
        settings: AgentSettings,
        node: NodeClient,
        engines: Engines,
        departure: Departure,
        monotonic_s: Monotonic,
        rng: random.Random,
        sleep: Callable[[float], None],
    ) -> None:
        self._settings, self._node, self._engines = settings, node, engines
        self._departure, self._now_s, self._rng, self._sleep = departure, monotonic_s, rng, sleep
        self._answered_at_s = monotonic_s()

    def fresh_delays(self) -> Iterator[float]:
        """Pauses that grow."""
        return delays_s(self._rng, first_s=1.0, most_s=MOST_BACKOFF_S)

    def next_job(self, unanswered: Asked | None = None) -> tuple[ClaimReply | None, float]:
        """The server's reply, and when the request was first sent; None when told to leave before there was one.

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
                self._answered_at_s = self._now_s()
                return reply
            if self._departure.requested:
                return None
            self._sleep(next(delays))

    def pause(self) -> None:
        """Wait a little between two tries."""
        self._sleep(next(self.fresh_delays()))

    def ask(self, joint_key: str | None = None) -> Asked:
        """A new claim; with a key, for a companion of those at work, which is not waited for."""
        return Asked(claim=self.request(joint_key), sent_at_s=self._now_s())

    def send(self, asked: Asked) -> ClaimReply:
        """Send the claim once."""
        reply = self._node.claim(asked.claim)
        self._answered_at_s = self._now_s()
        return reply

    def request(self, joint_key: str | None = None) -> Claim:
        """Raises ValidationError for settings that the server would not take."""
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
        return Claim(
            request_id=f"{self._rng.getrandbits(128):032x}",
            node=info,
            kinds=self._engines.kinds,
            held_models=engine.held[:MOST_THINGS] if engine is not None else (),
            joint_key=joint_key,
            wait_s=settings.claim_wait_s if joint_key is None else 0.0,
        )

    def _failed(self, error: GiornataError, refusals: int) -> None:
        # One refusal may be of a request that was damaged on its way.
        if refusals >= REFUSALS:
            log.error("the server at %s refuses this node: %s", self._settings.url, error)
            raise GaveUp(ExitCode.UNUSABLE) from error
        silent_s = self._now_s() - self._answered_at_s
        limit_s = self._settings.give_up_after_s
        if limit_s is not None and silent_s >= limit_s:
            log.error("no answer from %s for %.0f s: %s", self._settings.url, silent_s, error)
            raise GaveUp(ExitCode.SERVER_GONE) from error
        log.warning("claim: %s", error)
