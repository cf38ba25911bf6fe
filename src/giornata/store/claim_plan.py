"""Which job each of several claims gets: the one that it would if they came one after the other."""

import functools
from collections.abc import Hashable, Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.work_rows import Taking
from giornata.store.claiming import PINNED, Form, first_ones_of_queue, shape_of
from giornata.store.schema import bans, jobs

_BANS = sa.select(bans.c.job_id, bans.c.machine_id).where(
    bans.c.job_id.in_(sa.bindparam("jobs", expanding=True)),
    bans.c.machine_id.in_(sa.bindparam("machines", expanding=True)),
)
_PINNED = (
    sa.select(jobs.c.only_machine_id)
    .distinct()
    .where(PINNED, jobs.c.only_machine_id.in_(sa.bindparam("machines", expanding=True)))
)


class Plan:
    """Reads and locks the heads of the queue for all claims, once for those that want the same.

    Each list is as long as there are claims, so that the others cannot empty it for the last one; only bans can.
    """

    def __init__(self, connection: sa.Connection, claims: Sequence[Taking]) -> None:
        self._connection = connection
        self._each = _power_of_two(len(claims))
        self._heads: dict[Hashable, tuple[list[str], bool]] = {}
        for claim in claims:
            if (group := _group(claim)) not in self._heads:
                self._heads[group] = self._read_heads(claim)
        self._pinned = self._read_pinned({claim.wanted.machine_id for claim in claims})
        self._bans = self._read_bans({claim.wanted.machine_id for claim in claims})
        self.taken: set[str] = set()

    def first_for(self, claim: Taking) -> str | None:
        """The first job that nobody has taken yet and that is not banned for its machine; it is taken now.

        None for a machine that has jobs of its own: they were not looked at.
        """
        job_ids, _ = self._heads[_group(claim)]
        machine_id = claim.wanted.machine_id
        if machine_id in self._pinned:
            return None
        free = (job_id for job_id in job_ids if job_id not in self.taken and (job_id, machine_id) not in self._bans)
        job_id = next(free, None)
        if job_id is not None:
            self.taken.add(job_id)
        return job_id

    def saw_all(self, claim: Taking) -> bool:
        """Whether its list holds all that is queued for it, so that there is nothing if nothing is left in it."""
        return self._heads[_group(claim)][1] and claim.wanted.machine_id not in self._pinned

    def _read_heads(self, claim: Taking) -> tuple[list[str], bool]:
        shape = shape_of(claim.wanted)
        found = self._connection.scalars(_heads(shape.form, each=self._each), {**shape.values}).all()
        # Of what comes behind the first ones by rank, some may be missing.
        job_ids = list(dict.fromkeys(found))[: self._each]
        return job_ids, len(job_ids) < self._each

    def _read_pinned(self, machines: set[str]) -> set[str]:
        """Those that jobs are queued for which nobody else may have."""
        found = self._connection.scalars(_PINNED, {"machines": sorted(machines)})
        return {machine_id for machine_id in found if machine_id is not None}

    def _read_bans(self, machines: set[str]) -> set[tuple[str, str]]:
        job_ids = {job_id for found, _ in self._heads.values() for job_id in found}
        if not job_ids:
            return set()
        found = self._connection.execute(_BANS, {"jobs": sorted(job_ids), "machines": sorted(machines)})
        return {(job_id, machine_id) for job_id, machine_id in found}


def _group(claim: Taking) -> Hashable:
    """Claims that are equal in this look at the same heads."""
    wanted = claim.wanted
    return wanted.kinds, wanted.held_models, wanted.project_id, wanted.vram_bytes, wanted.joint_key


def _power_of_two(number: int) -> int:
    """The next one, so that there are few statements to prepare."""
    return 1 << (number - 1).bit_length()


@functools.lru_cache(maxsize=256)
def _heads(form: Form, *, each: int) -> sa.Select[Any]:
    return first_ones_of_queue(form, each=each)
