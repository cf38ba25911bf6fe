"""Who of a server's fleets recognises the tokens of their providers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from giornata.control.ports.identities import NoIdentities, Workload, WorkloadIdentities
from giornata.domain.errors import Unauthenticated, Unavailable


@runtime_checkable
class GivesTokens(Protocol):
    """A fleet whose provider gives its nodes tokens that say who they are."""

    @property
    def identities(self) -> WorkloadIdentities | None:
        """What recognises them; None when this fleet's nodes carry a key."""


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Takes a token that any of these recognises."""

    each: Sequence[WorkloadIdentities]

    def recognise(self, token: str) -> Workload:
        """See WorkloadIdentities. Unavailable counts for more than a refusal: the one who is away might know it."""
        away: Unavailable | None = None
        for identities in self.each:
            try:
                return identities.recognise(token)
            except Unauthenticated:
                continue
            except Unavailable as error:
                away = error
        raise away or Unauthenticated("this token is of no fleet of this installation")


def identities_of(fleets: Iterable[object]) -> WorkloadIdentities:
    """What recognises the nodes of all of these fleets that have such tokens."""
    found = [fleet.identities for fleet in fleets if isinstance(fleet, GivesTokens)]
    known = [each for each in found if each is not None]
    return AnyOf(known) if known else NoIdentities()
