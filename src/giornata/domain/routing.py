"""Which queued job a node is given."""

from dataclasses import dataclass

# Within one such window jobs count as equally old, and the node's warm model decides.
AFFINITY_WINDOW_MS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What the order depends on. `queued_at_ms` is the job's submission time, in epoch milliseconds."""

    job_id: str
    interrupted: bool
    priority: int
    queued_at_ms: int
    model_held: bool


def rank(candidate: Candidate) -> tuple[int, int, int, int, int, str]:
    """Sort key; the smallest is handed out first.

    Interrupted jobs, then priority (higher first), then age in windows of AFFINITY_WINDOW_MS, then what the node
    already holds, then exact age. The claim statement in `giornata.store` orders the same way; a test holds the
    two together.
    """
    return (
        -int(candidate.interrupted),
        -candidate.priority,
        candidate.queued_at_ms // AFFINITY_WINDOW_MS,
        -int(candidate.model_held),
        candidate.queued_at_ms,
        candidate.job_id,
    )
