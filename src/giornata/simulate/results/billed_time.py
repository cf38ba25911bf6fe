"""The uses of the billed seconds."""

from collections import defaultdict
from dataclasses import dataclass, field

# What a node does outside of the steps, shown apart.
AROUND = ("checks", "model", "download", "caching", "finish")
TRAIN, IDLE = "train", "idle"


@dataclass(slots=True)
class MachineTime:
    """The billed time and the useful steps of one machine."""

    billed_ms: float = 0.0
    useful_steps: float = 0.0


@dataclass(slots=True)
class BilledTime:
    """Milliseconds by what they were for. `billed_ms` is the provider's own count, the rest is the nodes'."""

    billed_ms: float = 0.0
    billed_micro_usd: float = 0.0
    useful_ms: float = 0.0
    lost_ms: float = 0.0
    idle_ms: float = 0.0
    around_ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(AROUND, 0.0))
    steps: float = 0.0  # computed, useful or not
    useful_steps: float = 0.0
    attempt_ms: float = 0.0  # within attempts, billed or not
    machines: dict[str, MachineTime] = field(default_factory=lambda: defaultdict(MachineTime))

    @property
    def startup_ms(self) -> float:
        """The time of everything around the steps."""
        return sum(self.around_ms.values())

    @property
    def unaccounted_ms(self) -> float:
        """Billed, and not known for what; zero but for rounding."""
        return self.billed_ms - self.useful_ms - self.lost_ms - self.idle_ms - self.startup_ms


class InstanceTimer:
    """The time of one instance from when it is billed to when it is not."""

    def __init__(self, billed_time: BilledTime, *, at_ms: int) -> None:
        self._billed_time, self._since_ms, self._doing = billed_time, at_ms, IDLE
        self._open: dict[str, float] = defaultdict(float)
        self._closed = False

    def turn(self, doing: str, *, at_ms: int) -> None:
        """Book the time so far, and note the new activity."""
        if not self._closed:
            self._open[self._doing] += at_ms - self._since_ms
            self._doing, self._since_ms = doing, at_ms

    def settle(self, *, useful_share: float | None, at_ms: int) -> None:
        """Book what was done so far. `useful_share`: of the steps' time of the attempt that ends now; None: it was in
        no attempt. All of an attempt that brought nothing is lost, what came before its steps too."""
        if self._closed:
            return
        self.turn(self._doing, at_ms=at_ms)
        for doing, spent_ms in self._open.items():
            self._book(doing, spent_ms, useful_share)
        self._open.clear()

    def close(self, *, at_ms: int) -> None:
        """The instance is billed no more. Its attempt was settled before."""
        self.settle(useful_share=None, at_ms=at_ms)
        self._closed = True

    def _book(self, doing: str, spent_ms: float, useful_share: float | None) -> None:
        billed_time = self._billed_time
        if doing == IDLE:
            billed_time.idle_ms += spent_ms
        elif useful_share == 0.0 or (doing == TRAIN and useful_share is None):
            billed_time.lost_ms += spent_ms
        elif doing == TRAIN:
            share = useful_share or 0.0
            billed_time.useful_ms += spent_ms * share
            billed_time.lost_ms += spent_ms * (1.0 - share)
        else:
            billed_time.around_ms[doing] += spent_ms
