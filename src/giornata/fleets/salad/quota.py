"""How much of the organization's quota is left for one fleet. All container groups of the organization share it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """`replicas` the organization may have, and `used` are in use; `own` of those are this fleet's.

    The three were read at about the same time. None: the provider does not say.
    """

    replicas: int | None
    used: int | None
    own: int

    @property
    def others(self) -> int:
        """Replicas in use that are not this fleet's. The provider may count a change of ours late."""
        return max(0, (self.used or 0) - self.own)

    @property
    def most(self) -> int | None:
        """How many replicas this fleet may have in all. Never fewer than it has: a quota ends nobody."""
        return None if self.replicas is None else max(self.own, self.replicas - self.others)

    def __str__(self) -> str:
        return (
            f"the organization's quota is {self.replicas} replicas, and others use {self.others} of them: "
            f"at most {self.most} are for this fleet"
        )


def quota_of(document: Document, *, own: int) -> Quota:
    """From the provider's document."""
    replicas, used = document.get("container_replicas_quota"), document.get("container_replicas_used")
    return Quota(
        replicas=replicas if isinstance(replicas, int) else None,
        used=used if isinstance(used, int) else None,
        own=own,
    )
