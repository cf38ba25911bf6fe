"""Choose the queued job for a node, and give a new job its turn.

Turns are fair between projects: start-time fair queuing (P. Goyal, H. M. Vin, H. Cheng, "Start-time Fair Queueing: A
Scheduling Algorithm for Integrated Services Packet Switching Networks", SIGCOMM 1996), with projects for flows, every
project of equal weight, and every job of length 1, since nobody knows before how long it will take. A job's turn is
its start tag: one after the project's job before it, and not before the queue's present turn. So of two projects
that both wait each has its job at every turn, a project that comes late with few jobs stands near the head, one that
floods waits behind its own jobs, and a project that is alone sees first in, first out.

Turns are given at submission and never change: a claim reads them from an index.
"""

from collections.abc import Collection
from dataclasses import dataclass

# Within one such window of turns the node's warm model decides. What is won by that is the load of a model, a minute
# or more of a job's hour, and the window holds that many jobs of every project that waits, among which one on the
# held model is likely. What it costs is fairness: of two projects that wait one may get ahead by twice the window.
AFFINITY_WINDOW = 16
# A node with unknown GPU memory counts as having this much: it may try every job.
ENDLESS_BYTES = 2**63 - 1
# Of what was handed out latest this many tell where the queue is.
RECENT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The properties of a job that decide its place in the order.

    `pinned`: the job is for this machine only. `audit`: it repeats what another machine has done. `turn` is the
    job's, see `next_turn`.
    """

    job_id: str
    pinned: bool = False
    audit: bool = False
    interrupted: bool
    priority: int
    turn: int
    model_held: bool


def rank(candidate: Candidate) -> tuple[int, int, int, int, int, int, int, str]:
    """Sort key; the smallest is handed out first.

    Audits come last, so that they delay nobody.
    Jobs for this very machine, then interrupted ones, then priority (higher first), then turns in windows of
    AFFINITY_WINDOW, then what the node already holds, then the exact turn, and of one turn the older job. The claim
    statement in `giornata.store` orders the same way; a test holds the two together.
    """
    return (
        int(candidate.audit),
        -int(candidate.pinned),
        -int(candidate.interrupted),
        -candidate.priority,
        candidate.turn // AFFINITY_WINDOW,
        -int(candidate.model_held),
        candidate.turn,
        candidate.job_id,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Turns of jobs of one kind and priority that are for any machine.

    `head` is the smallest of those that are queued and never began, None when there is none. `recent` are those of
    the RECENT jobs that began latest. `own` is the project's largest among jobs that are queued or began, None when
    there is none: what was given up before it began took no turn.
    """

    head: int | None
    recent: Collection[int]
    own: int | None

    def with_one_more(self, turn: int) -> "Turns":
        """Return the turns after a job of the project is queued at this turn, which `next_turn` gave."""
        return Turns(head=turn if self.head is None else min(self.head, turn), recent=self.recent, own=turn)


def next_turn(turns: Turns) -> int:
    """The turn of a project's new job: one after the project's latest, and not before the queue's present turn.

    The present turn is the head's. A head that no present node may take would hold it back, and every newcomer would
    go before those who have waited for long; then it is the begin of the window of the slowest of the jobs that were
    handed out latest, so that a project that waits still gets the turn after its latest. When nothing is queued it is
    one after the largest turn that was just handed out, as the paper has it for the end of a busy period.
    """
    if turns.head is None:
        present = max(turns.recent, default=0) + 1
    else:
        slowest = min(turns.recent, default=0)
        present = max(turns.head, slowest - slowest % AFFINITY_WINDOW)
    return max(present, 0 if turns.own is None else turns.own + 1)


def memory_after_too_small(vram_bytes: int) -> int:
    """Return the least GPU memory for a job that did not fit into `vram_bytes`, in bytes.

    A sixteenth more: cards of one size differ by some percent (error correction takes up to 6.25 %, drivers keep some
    for themselves), while the next larger size is at least 9 % away.
    """
    return vram_bytes + vram_bytes // 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureTurns:
    """The turns behind a new order's first turn, each None when there is none.

    `head` is the least turn of a queued picture of this priority, `last` the turn behind the last order of this
    priority, and `own` that of the project's own last order.
    """

    head: int | None
    last: int | None
    own: int | None


def first_picture_turn(turns: PictureTurns) -> int:
    """Return the turn of an order's first picture; each other picture's turn is its predecessor's plus its work.

    Start-time fair queuing as above, with a picture's pixel-steps for its length. When nothing is queued, the present
    turn is the one behind everything that was ever queued.
    """
    present = turns.head if turns.head is not None else turns.last or 0
    return max(present, turns.own or 0)
