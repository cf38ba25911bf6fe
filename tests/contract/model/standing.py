"""Which machines are trusted, as the tables say: written down a second time on purpose."""

import json
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tests.contract.model.model_rig import ModelRig, NodePlace, Row, RowSnapshot

from giornata.domain.generation.picture import ORDER_KINDS
from giornata.domain.jobs.reasons import BLAME, Blame, Reason

Key = tuple[str, str]  # machine, kind
HOUR_MS = 3_600_000
AT_STAKE = {reason.value for reason in Reason if BLAME[reason] in {Blame.MACHINE, Blame.UNDECIDED}}


class Standing:
    """Of the machines at one moment. `begun` counts what earlier rounds of a batch of claims began, by machine and
    kind; `admitted` counts what this round may begin."""

    def __init__(self, rig: ModelRig, now: RowSnapshot, *, begun: Mapping[Key, int] = MappingProxyType({})) -> None:
        self._now, self._now_ms = now, rig.clock.now_ms()
        self._full_quota = rig.ctx.policy.health.quota_per_hour
        self._machines = {(row.machine_id, row.kind): row for row in now.machines}
        self._kinds = {row.id: row.kind for row in now.jobs}
        self.begun, self.admitted = Counter(begun), Counter[Key]()

    def kinds(self, place: NodePlace) -> list[str]:
        """Of the kinds that it takes, those that its machine may begin; each is admitted once more."""
        allowed = [kind for kind in place.kinds if self._may(place.machine, kind)]
        self.admitted.update((place.machine, kind) for kind in allowed)
        return allowed

    def crowded(self, place: NodePlace) -> set[Key]:
        """Kinds that its machine may not begin besides those that were admitted."""
        keys = {(place.machine, kind) for kind in place.kinds if not self._may(place.machine, kind)}
        return {key for key in keys if self.admitted[key]}

    def _may(self, machine: str, kind: str) -> bool:
        row = self._machines.get((machine, kind))
        if row is None or (row.state == "ok" and row.quota >= self._full_quota):
            return True
        here = [it for it in self._now.attempts if it.machine_id == machine and self._kinds[it.job_id] == kind]
        live = [it for it in here if it.ended_at_ms is None and not it.lapsed]
        just_now = self.begun[machine, kind] + self.admitted[machine, kind]
        if row.state == "probation":
            return len(live) + just_now == 0
        since_ms = self._now_ms - HOUR_MS
        lately = [it for it in here if it.started_at_ms > since_ms]
        stake = [it for it in lately if it in live or it.reason in AT_STAKE]
        return row.state == "ok" and len(stake) + just_now < row.quota


def check_standing(before: RowSnapshot, seen: RowSnapshot) -> None:
    """No job goes to a quarantined machine, and a job that turned out to be bad is held against none for a crash."""
    kinds = {row.id: row.kind for row in seen.jobs}
    was = {(row.machine_id, row.kind): row for row in before.machines if row.state == "quarantined"}
    still = {
        (row.machine_id, row.kind)
        for row in seen.machines
        if row.state == "quarantined" and was.get((row.machine_id, row.kind)) == row
    }
    known = {row.id for row in before.attempts}
    for row in seen.attempts:
        new = row.id not in known
        assert not (new and (row.machine_id, kinds[row.job_id]) in still), f"{row} went to a quarantined machine"
    # An order fails picture by picture, each of which is tried alone on several machines.
    failed = {row.id for row in seen.jobs if row.state == "failed" and row.kind not in ORDER_KINDS}
    for row in seen.machines:
        held = [each for each in _failures(row) if each["reason"] == Reason.CRASHED and each["job_id"] in failed]
        assert not held, f"{row} is blamed for a job that turned out to be bad: {held}"


def _failures(row: Row) -> list[dict[str, Any]]:
    held: Any = row.recent_failures
    return list(json.loads(held) if isinstance(held, str | bytes) else held)
