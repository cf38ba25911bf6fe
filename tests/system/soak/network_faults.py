"""What the network does: now and then something is lost, late, doubled, torn or spoiled on its way."""

import random
import threading
from collections import Counter
from typing import Any

from tests.fixtures.chaos_proxy import ChaosProxy, Trap
from tests.system.soak.installation import SoakInstallation

# Requests are not spoiled on their way to the control plane: a number that is another number is no fault that anybody
# could see, and what keeps bytes as they are on real networks is TLS.
HARMS: dict[str, dict[str, Any]] = {
    "request lost": {"drop": True},
    "reply lost": {"drop_reply": True},
    "sent twice": {"copies": 2},
    "late": {"delay_s": 1.0},
    "later than the next": {"delay_s": 4.0},
    "a proxy's error": {"status": 502},
    "reply torn": {"cut_at": 1, "spoil": lambda body: body or b"{}"},
    "reply spoiled": {"spoil": lambda _: b"<html>please log in</html>"},
}
STORAGE_HARMS: dict[str, dict[str, Any]] = HARMS | {
    "request spoiled": {"spoil_request": lambda body: body[::-1]},
    "reply spoiled": {"spoil": lambda body: body[::-1]},
}
OUTAGE_S = 3.0


class NetworkFaults:
    """Sets a trap every `every_s` on average, until told to stop; now and then a server cannot be reached at all.

    One trap at a time waits at each proxy: those that nobody falls into must not gather. `harms` counts those that
    somebody fell into.
    """

    def __init__(self, installation: SoakInstallation, *, every_s: float, seed: int) -> None:
        self.harms: Counter[str] = Counter()
        self._set_now: dict[int, tuple[str, Trap]] = {}
        self._installation, self._every_s, self._rng = installation, every_s, random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._blow, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The sun comes out: no trap is left."""
        self._stopping.set()
        self._thread.join()
        for proxy in self._proxies():
            self._take_away(proxy)

    def _blow(self) -> None:
        while not self._stopping.wait(self._rng.expovariate(1 / self._every_s)):
            server = self._rng.choice(self._installation.servers)
            if self._rng.random() < 0.02:
                self._outage(server.control, server.storage)
            elif self._rng.random() < 0.3:
                self._set(server.storage, STORAGE_HARMS, "storage", self._rng.choice(["PUT", "GET"]))
            else:
                self._set(server.control, HARMS, "control", self._rng.choice(["POST", "POST", "POST", "GET"]))
            for proxy in self._proxies():
                proxy.seen.clear()

    def _set(self, proxy: ChaosProxy, harms: dict[str, dict[str, Any]], where: str, method: str) -> None:
        self._take_away(proxy)
        harm = self._rng.choice(list(harms))
        trap = proxy.set(Trap(method, "^/v1/", skip=self._rng.randrange(3), **harms[harm]))
        self._set_now[proxy.port] = (f"{where}: {harm}", trap)

    def _take_away(self, proxy: ChaosProxy) -> None:
        proxy.clear()
        name, trap = self._set_now.pop(proxy.port, ("", None))
        if trap is not None and trap.caught.is_set():
            self.harms[name] += 1

    def _outage(self, *proxies: ChaosProxy) -> None:
        self.harms["outage"] += 1
        for proxy in proxies:
            proxy.down.set()
        self._stopping.wait(OUTAGE_S)
        for proxy in proxies:
            proxy.down.clear()

    def _proxies(self) -> list[ChaosProxy]:
        return [proxy for server in self._installation.servers for proxy in (server.control, server.storage)]
