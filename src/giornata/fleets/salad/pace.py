"""No more requests than the provider allows for an API key."""

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakValueDictionary


@dataclass(slots=True, kw_only=True, weakref_slot=True)
class Pace:
    """A bucket of tokens: `burst` requests at once, and `per_minute` in the long run. Thread-safe.

    In any minute at most `burst + per_minute` requests go out. `monotonic_s` and `sleep` are arguments so that tests
    need not wait.
    """

    per_minute: float
    burst: int = 20
    monotonic_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _tokens: float = field(init=False)
    _filled_s: float = field(init=False)
    _not_before_s: float = field(init=False, default=0.0)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._tokens, self._filled_s = float(self.burst), self.monotonic_s()

    def wait(self) -> None:
        """Take a token; first sleep until there is one."""
        delay_s = self._taken_in_s()
        if delay_s > 0:
            self.sleep(delay_s)

    def hold(self, seconds: float) -> None:
        """The provider said that it is too much: nobody with this key asks for so long."""
        with self._lock:
            self._not_before_s = max(self._not_before_s, self.monotonic_s() + seconds)
            self._tokens = min(self._tokens, 1.0)

    def held_s(self) -> float:
        """For how long nobody may ask."""
        return max(0.0, self._not_before_s - self.monotonic_s())

    def _taken_in_s(self) -> float:
        # Tokens may be owed: each who waits has taken one, so that those who wait do not all wake up for one.
        with self._lock:
            now_s, rate_per_s = self.monotonic_s(), self.per_minute / 60
            self._tokens = min(float(self.burst), self._tokens + (now_s - self._filled_s) * rate_per_s) - 1
            self._filled_s = now_s
            owed_s = max(0.0, -self._tokens / rate_per_s)
            return max(owed_s, self._not_before_s - now_s)


MOST_AT_ONCE = 20

_paces: "WeakValueDictionary[str, Pace]" = WeakValueDictionary()
_paces_lock = threading.Lock()


def pace_of(api_key: str, *, per_minute: float) -> Pace:
    """The pace of everybody in this process who has that key: the provider counts by key, not by fleet.

    `per_minute` is the whole: a burst of at most 20 is taken from it, so that no minute has more than allowed.
    """
    name = hashlib.sha256(api_key.encode()).hexdigest()
    burst = max(1, min(MOST_AT_ONCE, int(per_minute // 4)))
    with _paces_lock:
        pace = _paces.get(name)
        if pace is None:
            pace = _paces[name] = Pace(per_minute=max(1.0, per_minute - burst), burst=burst)
        return pace
