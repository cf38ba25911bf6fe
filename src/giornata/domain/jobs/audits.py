"""Replay audits: which stretches of training are run again elsewhere, who may run them, and what the results say.

A stretch is the steps between two committed checkpoints of a job. Training repeats itself to the byte under an equal
fingerprint, so a machine that trained as it should and one that repeats the stretch have equal results. Of three
results one that stands alone is wrong.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from giornata.domain.machines.machine_ids import owner_of
from giornata.domain.named_draws import drawn_integer, drawn_share

MAX_SHARE = 1.0
DRAWN = "replay audit"
PLACED = "machine of a replay audit"
SUSPECT_FACTOR = 5.0
NEW_FACTOR = 2.0
SOUND_FACTOR = 0.95
"""Of a machine with a sound audit: what the others are audited more often is paid for by these."""


class AuditState(StrEnum):
    """The phase that an audit is in."""

    OPEN = "open"  # a machine is to repeat the stretch, or does so
    CONTESTED = "contested"  # two results differ, and a third machine is to repeat the stretch
    CONFIRMED = "confirmed"  # another machine has the same result
    REFUTED = "refuted"  # two machines agree on another result
    UNDECIDED = "undecided"  # three results differ
    NOT_AUDITED = "not_audited"  # no machine could repeat the stretch


DECIDED = frozenset({AuditState.CONFIRMED, AuditState.REFUTED, AuditState.UNDECIDED, AuditState.NOT_AUDITED})


class AuditParty(StrEnum):
    """One of the three whose results are compared."""

    AUDITED = "audited"
    FIRST = "first"
    SECOND = "second"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPolicy:
    """Shares of stretches that are audited, from 0 to 1, by fleet; `share` is that of the operator's other machines.

    Machines in `rented_fleets` belong to many owners who do not know each other; in any other fleet one owner may
    have several. An audit that no machine took within `waits_s` seconds is given up, and so is one after `max_runs`
    runs.
    """

    share: float = 0.0
    share_by_fleet: Mapping[str, float] = field(default_factory=dict)
    rented_fleets: frozenset[str] = frozenset()
    waits_s: float = 24 * 3600.0
    max_runs: int = 6
    kept_s: float = 30 * 24 * 3600.0  # checkpoints that two machines agree on, after the end of their job

    @property
    def largest_share(self) -> float:
        """The largest share that any machine may have."""
        return min(MAX_SHARE, SUSPECT_FACTOR * max([self.share, *self.share_by_fleet.values()]))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditStanding:
    """The facts that decide how often a machine is audited. `sound_audits` counts those since its latest mismatch."""

    machine_id: str
    fleet: str
    sound_audits: int
    suspect: bool  # on probation, or with an audit that failed


def share_of(standing: AuditStanding, *, policy: AuditPolicy) -> float:
    """Return the share of this machine's stretches that are audited; 0 for a machine of a project's own."""
    if owner_of(standing.machine_id) is not None:
        return 0.0
    share = policy.share_by_fleet.get(standing.fleet, policy.share)
    factor = SUSPECT_FACTOR if standing.suspect else SOUND_FACTOR if standing.sound_audits else NEW_FACTOR
    return min(MAX_SHARE, share * factor)


def is_audited(seed: int, job_id: str, step: int, *, share: float) -> bool:
    """Return True when the stretch of the job that ends with this step is audited. The seed is a secret of the
    server's, so no node can tell beforehand.
    """
    return drawn_share(seed, DRAWN, job_id, step) < share


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditMachine:
    """A machine that may repeat a stretch, or has done so."""

    machine_id: str
    fleet: str


def are_strangers(one: AuditMachine, other: AuditMachine, *, policy: AuditPolicy) -> bool:
    """Return True when the machines have neither a machine, a project as owner, nor a fleet that one owner may fill
    in common.
    """
    if one.machine_id == other.machine_id:
        return False
    owner = owner_of(one.machine_id)
    if owner is not None and owner == owner_of(other.machine_id):
        return False
    return one.fleet != other.fleet or one.fleet in policy.rented_fleets


def draw_machine(
    seed: int,
    audit_id: str,
    candidates: Collection[AuditMachine],
    earlier: Sequence[AuditMachine],
    *,
    contested: bool,
    policy: AuditPolicy,
) -> AuditMachine | None:
    """Return the machine that repeats the stretch next; None when no candidate may.

    `earlier` are the audited machine and all that have tried. Strangers to all of them come first. A machine that is
    to decide between two has to be one.
    """
    known = {each.machine_id for each in earlier}
    others = sorted({each for each in candidates if each.machine_id not in known}, key=lambda each: each.machine_id)
    strangers = [each for each in others if all(are_strangers(each, was, policy=policy) for was in earlier)]
    may = strangers if contested else strangers or others
    return may[drawn_integer(seed, PLACED, audit_id, len(earlier), below=len(may))] if may else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """The result of a stretch: the checkpoint's sha256, losses by step, and files' sha256s by name."""

    sha256: str
    losses: Mapping[int, float] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


def agree(one: AuditResult, other: AuditResult) -> bool:
    """Return True when both have the same checkpoint, and the same of all steps and files that both tell of."""
    same_losses = all(one.losses[step] == other.losses[step] for step in one.losses.keys() & other.losses.keys())
    same_files = all(one.files[name] == other.files[name] for name in one.files.keys() & other.files.keys())
    return one.sha256 == other.sha256 and same_losses and same_files


def alone(audited: AuditResult, first: AuditResult, second: AuditResult) -> AuditParty | None:
    """Return whose result the other two contradict, given that the first two differ; None when all three differ."""
    if agree(first, second):
        return AuditParty.AUDITED
    return AuditParty.FIRST if agree(audited, second) else None
