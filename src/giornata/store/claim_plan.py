"""Which job each of several claims gets: the one that it would if they came one after the other."""

import functools
from collections.abc import Hashable, Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.work_rows import Taking
from giornata.store.claiming import PINNED, Form, first_ones_of_queue, shape_of
from giornata.store.row_list import among
from giornata.store.schema import bans, jobs


class Plan:
    """Reads and locks the heads of the queue for all claims, once for those that want the same.

    Each list is as long as there are claims, so that the others cannot empty it for the last one; only bans can.
    """

    def __init__(self, connection: sa.Connection, dialect_name: str, claims: Sequence[Taking]) -> None:
        self._connection, self._dialect_name = connection, dialect_name
        self._each = _power_of_two(len(claims))
        self._heads: dict[Hashable, tuple[list[str], bool]] = {}
        for claim in claims:
            if (group := _group(claim)) not in self._heads:
                self._heads[group] = self._read_heads(claim)
        self._pinned, self._bans = self._read_of_machines({claim.wanted.machine_id for claim in claims})
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

    def _read_of_machines(self, machines: set[str]) -> tuple[set[str], set[tuple[str, str]]]:
        """Those that jobs are queued for which nobody else may have; which job is banned from which."""
        job_ids = {job_id for found, _ in self._heads.values() for job_id in found}
        values = {"jobs": sorted(job_ids), "machines": sorted(machines)}
        found = self._connection.execute(_of_machines(self._dialect_name), values).all()
        pinned = {machine_id for job_id, machine_id in found if job_id is None}
        return pinned, {(job_id, machine_id) for job_id, machine_id in found if job_id is not None}


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


@functools.cache
def _of_machines(dialect_name: str) -> sa.CompoundSelect[Any]:
    """(job, machine) of each ban among the jobs, and (nothing, machine) where jobs are for that machine only."""
    banned = sa.select(bans.c.job_id, bans.c.machine_id).where(
        among(dialect_name, bans.c.job_id, "jobs"), among(dialect_name, bans.c.machine_id, "machines")
    )
    of_its_own = among(dialect_name, jobs.c.only_machine_id, "machines")
    return sa.union_all(banned, sa.select(sa.null(), jobs.c.only_machine_id).where(PINNED, of_its_own))
