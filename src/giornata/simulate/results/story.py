"""The history of each job and of the fleet, which the simulation records as it runs."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class JobTrace:
    """One job. Instants are milliseconds; `best_step` is the highest step that was kept."""

    id: str
    project_id: str
    steps: int
    started_ms: int | None = None
    done_ms: int | None = None
    attempts: list[str] = field(default_factory=list)  # machines, in order
    best_step: int = 0
    completions: int = 0
    trained_to_the_end: int = 0  # by nodes that thought they had the lease
    attempt_ms: float = 0.0

    @property
    def minutes(self) -> float | None:
        """The minutes from the job's first start to its end."""
        if self.started_ms is None or self.done_ms is None:
            return None
        return (self.done_ms - self.started_ms) / 60_000


@dataclass(frozen=True, slots=True)
class QueueSample:
    """The whole, at one moment."""

    at_s: float
    queued: int
    at_work: int
    running: int
    starting: int


@dataclass(frozen=True, slots=True)
class BeatSeen:
    """One beat of one job, for the plot of its life."""

    at_s: float
    job_id: str
    machine_id: str
    step: int
    phase: str


@dataclass(slots=True)
class SimulationTrace:
    """All of it. Beats are kept only when somebody wants to draw them."""

    jobs: dict[str, JobTrace] = field(default_factory=dict)
    samples: list[QueueSample] = field(default_factory=list)
    beats: list[BeatSeen] = field(default_factory=list)
    keep_beats: bool = False
    stale_writes_accepted: int = 0
    trials: int = 0  # canaries
    attempts_on_broken: int = 0
    lost_leases: int = 0
