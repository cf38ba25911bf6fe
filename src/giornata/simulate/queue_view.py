"""How the queue stands."""

from dataclasses import dataclass

import sqlalchemy as sa

from giornata.domain.job import TERMINAL
from giornata.protocol.specs import CANARY_KIND
from giornata.simulate.installation import Installation
from giornata.store.schema import jobs


@dataclass(frozen=True, slots=True)
class Counts:
    """Jobs that wait, and jobs that are being worked on."""

    queued: int
    at_work: int


# Only those that are not done: there may be a hundred thousand that are.
_OPEN = (
    sa.select(jobs.c.state, sa.func.count())
    .where(jobs.c.state.not_in(sorted(TERMINAL)), jobs.c.kind != CANARY_KIND)
    .group_by(jobs.c.state)
)


def counts_of(installation: Installation) -> Counts:
    """Of the real store."""
    by_state = dict(installation.rows(_OPEN))
    running = by_state.pop("running", 0)
    return Counts(queued=sum(by_state.values()), at_work=running)
