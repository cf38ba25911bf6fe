"""The reasons for which attempts end, and their consequences.

The maps are total: a new reason does not import until it has a row in each.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

_V = TypeVar("_V")


class Reason(StrEnum):
    """The reason for which an attempt ended."""

    SUCCEEDED = "succeeded"
    CANCELED = "canceled"  # the user, or the job's deadline
    LEASE_EXPIRED = "lease_expired"  # the node fell silent, and another node took the job
    PREEMPTED = "preempted"  # the node was told to go (SIGTERM, spot notice) and said so
    RELEASED = "released"  # the node gave the job back on its own account
    NODE_DRIVER = "node_driver"  # CUDA, driver or GPU fault
    NODE_VRAM = "node_vram"  # less GPU memory than the job was promised
    NODE_TOO_SMALL = "node_too_small"  # the job needs more GPU memory than such a node has
    NODE_DISK = "node_disk"  # full, read-only or failing disk
    NODE_DOWNLOAD = "node_download"  # inputs could not be fetched, or did not hash
    NODE_START = "node_start"  # of no attempt: a node's process ended before it asked for work
    BAD_SPEC = "bad_spec"  # found out on the node: the spec cannot be carried out
    BAD_DATA = "bad_data"  # found out on the node: an input cannot be used
    CRASHED = "crashed"  # the workload died, and nobody can tell yet whose fault it was
    AUDIT_MISMATCH = "audit_mismatch"  # two other machines agree on another result of the same steps
    TOO_SLOW = "too_slow"  # no step within its budget, or far slower than its cohort
    OVER_BUDGET = "over_budget"  # the job's or the project's money is used up: the job waits until it is raised
    SUPERSEDED = "superseded"  # the same node was given the job again (its process was replaced)


class Blame(StrEnum):
    """The party that is responsible for the end of an attempt."""

    NOBODY = "nobody"
    JOB = "job"
    MACHINE = "machine"
    PLATFORM = "platform"
    USER = "user"
    UNDECIDED = "undecided"  # the job and the machine are both suspects


def _total(rows: dict[Reason, _V]) -> Mapping[Reason, _V]:
    missing = set(Reason) - set(rows)
    if missing:
        raise TypeError(f"reasons without a row: {sorted(missing)}")
    return MappingProxyType(rows)


BLAME: Mapping[Reason, Blame] = _total(
    {
        Reason.SUCCEEDED: Blame.NOBODY,
        Reason.CANCELED: Blame.USER,
        Reason.LEASE_EXPIRED: Blame.PLATFORM,
        Reason.PREEMPTED: Blame.PLATFORM,
        Reason.RELEASED: Blame.PLATFORM,
        Reason.NODE_DRIVER: Blame.MACHINE,
        Reason.NODE_VRAM: Blame.MACHINE,
        Reason.NODE_TOO_SMALL: Blame.UNDECIDED,  # another node may be larger, and this one is sound
        Reason.NODE_DISK: Blame.MACHINE,
        Reason.NODE_DOWNLOAD: Blame.MACHINE,
        Reason.NODE_START: Blame.MACHINE,
        Reason.BAD_SPEC: Blame.JOB,
        Reason.BAD_DATA: Blame.JOB,
        Reason.CRASHED: Blame.UNDECIDED,
        Reason.AUDIT_MISMATCH: Blame.MACHINE,
        Reason.TOO_SLOW: Blame.MACHINE,
        Reason.OVER_BUDGET: Blame.USER,
        Reason.SUPERSEDED: Blame.PLATFORM,
    }
)

# May another node try the job after this?
RETRY: Mapping[Reason, bool] = _total(
    {reason: BLAME[reason] in {Blame.MACHINE, Blame.PLATFORM, Blame.UNDECIDED} for reason in Reason}
)

# Is a failure held against the machine, for all jobs?
STRIKE: Mapping[Reason, bool] = _total({reason: BLAME[reason] is Blame.MACHINE for reason in Reason})

# Is this very job given to other machines from now on, as long as there are any? See `domain.jobs.backoff`.
BAN: Mapping[Reason, bool] = _total({reason: BLAME[reason] in {Blame.MACHINE, Blame.UNDECIDED} for reason in Reason})

# Did a node vanish, as far as the spacing of checkpoints is concerned?
INTERRUPTION: Mapping[Reason, bool] = _total(
    {reason: BLAME[reason] in {Blame.MACHINE, Blame.PLATFORM, Blame.UNDECIDED} for reason in Reason}
)

# Reasons that do not tell whether a job or the machine failed when several attempts share an engine. A full disk or a
# failed download is always the machine's; a bad spec or bad data names its job.
AMBIGUOUS_WHEN_SHARED: Mapping[Reason, bool] = _total(
    {
        reason: reason
        in {Reason.CRASHED, Reason.TOO_SLOW, Reason.NODE_DRIVER, Reason.NODE_VRAM, Reason.NODE_TOO_SMALL}
        for reason in Reason
    }
)

# What a node may report by itself: the rest are the server's to decide.
REPORTABLE_FAILURES: frozenset[Reason] = frozenset(
    {
        Reason.NODE_DRIVER,
        Reason.NODE_VRAM,
        Reason.NODE_TOO_SMALL,
        Reason.NODE_DISK,
        Reason.NODE_DOWNLOAD,
        Reason.BAD_SPEC,
        Reason.BAD_DATA,
        Reason.CRASHED,
        Reason.TOO_SLOW,
    }
)
REPORTABLE_RELEASES: frozenset[Reason] = frozenset({Reason.PREEMPTED, Reason.RELEASED})


def job_fails(
    reason: Reason,
    *,
    crashes: int,
    max_crashed_machines: int,
    fruitless: int,
    max_fruitless: int,
    too_small_again: bool = False,
) -> bool:
    """Return True when the end of this attempt is the end of the job.

    `crashes` counts the crashes of the job since it last committed a step, this one included. Each is on another
    machine where there are others, so a job fails after as many crashes as machines are asked for, on any machines.
    `too_small_again`: the machine has found itself too small for the job before, and no other machine came since.
    `fruitless` counts the attempts in a row, this one included, that committed no new step: a job that kills
    each node it lands on never says why, and must not circle the fleet for ever.
    """
    if reason in {Reason.SUCCEEDED, Reason.CANCELED, Reason.OVER_BUDGET}:
        return False
    if not RETRY[reason]:
        return True
    if reason is Reason.CRASHED and crashes >= max_crashed_machines:
        return True
    if reason is Reason.NODE_TOO_SMALL and too_small_again:
        return True
    return fruitless >= max_fruitless
