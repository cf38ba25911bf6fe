"""Explain a lack of instances by the provider's log and its count of free machines."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from giornata.fleets.salad.calls import Document
from giornata.fleets.salad.options import SaladOptions
from giornata.fleets.salad.translation import replicas_of

USUAL = frozenset({"Instance Allocated", "Instance Downloading", "Instance Creating", "Instance Starting"})
MOST_KINDS = 4


def availability_asked(options: SaladOptions, gpu_classes: Sequence[str]) -> dict[str, Any]:
    """The question how many machines could take such a container."""
    countries = {"country_codes": list(options.country_codes)} if options.country_codes else {}
    return {
        "gpu_classes": list(gpu_classes),
        "cpu": options.cpu,
        "memory": options.memory_mb,
        "storage_amount": options.storage_bytes,
        **countries,
    }


def why_missing(
    groups: Sequence[Document], *, running: int, logs: Sequence[Document], availability: Document, priority: str
) -> str:
    """Explain missing instances of all container groups to the operator, in one or two sentences."""
    parts = [f"{running} of {sum(map(replicas_of, groups))} instances run"]
    states = [state for each in groups if isinstance(state := each.get("current_state"), dict)]
    parts += [waiting] if (waiting := _waiting(states)) else []
    parts += sorted({str(each["description"]) for each in states if each.get("description")})
    free = availability.get(f"available_gpu_{priority}")
    if isinstance(free, int):
        parts.append(f"the provider counts {free} free machines for the priority {priority}")
    parts += [lately] if (lately := _lately(logs)) else []
    return "; ".join(parts)


def _waiting(states: Sequence[Document]) -> str:
    """Describe the number of instances in each state but running."""
    counts: Counter[str] = Counter()
    for each in states:
        counts.update(each.get("instance_status_counts") or each.get("instance_status_count") or {})
    waiting = [f"{n} {name.removesuffix('_count')}" for name, n in counts.items() if n and name != "running_count"]
    return ", ".join(waiting)


def _lately(logs: Sequence[Document]) -> str:
    """The unusual of its log, most frequent first."""
    names = Counter(str(each.get("event_name")) for each in logs)
    unusual = [(name, count) for name, count in names.most_common() if name not in USUAL]
    return "lately: " + ", ".join(f"{name} ({count})" for name, count in unusual[:MOST_KINDS]) if unusual else ""


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
        """The most replicas for this fleet, never fewer than the fleet has: a quota ends no instance."""
        return None if self.replicas is None else max(self.own, self.replicas - self.others)

    def __str__(self) -> str:
        return (
            f"the organization's quota is {self.replicas} replicas, and others use {self.others} of them: "
            f"at most {self.most} are for this fleet"
        )


def quota_of(document: Document, *, own: int) -> Quota:
    """Read the replica quota from the provider's document."""
    replicas, used = document.get("container_replicas_quota"), document.get("container_replicas_used")
    return Quota(
        replicas=replicas if isinstance(replicas, int) else None,
        used=used if isinstance(used, int) else None,
        own=own,
    )
