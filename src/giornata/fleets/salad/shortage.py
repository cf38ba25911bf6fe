"""Why fewer instances run than were asked for: what the provider's log and its count of free machines say."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from giornata.fleets.salad.options import Options
from giornata.fleets.salad.translation import replicas_of

Document = Mapping[str, Any]

USUAL = frozenset({"Instance Allocated", "Instance Downloading", "Instance Creating", "Instance Starting"})
MOST_KINDS = 4


def availability_asked(options: Options, gpu_classes: Sequence[str]) -> dict[str, Any]:
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
    group: Document, *, running: int, logs: Sequence[Document], availability: Document, priority: str
) -> str:
    """One sentence or two for the operator."""
    parts = [f"{running} of {replicas_of(group)} instances run"]
    state = group.get("current_state")
    if isinstance(state, dict):
        counts = state.get("instance_status_counts") or state.get("instance_status_count") or {}
        waiting = [
            f"{count} {name.removesuffix('_count')}"
            for name, count in counts.items()
            if count and name != "running_count"
        ]
        parts += [", ".join(waiting)] if waiting else []
        parts += [str(state["description"])] if state.get("description") else []
    free = availability.get(f"available_gpu_{priority}")
    if isinstance(free, int):
        parts.append(f"the provider counts {free} free machines for the priority {priority}")
    parts += [lately] if (lately := _lately(logs)) else []
    return "; ".join(parts)


def _lately(logs: Sequence[Document]) -> str:
    """The unusual of its log, most frequent first."""
    names = Counter(str(each.get("event_name")) for each in logs)
    unusual = [(name, count) for name, count in names.most_common() if name not in USUAL]
    return "lately: " + ", ".join(f"{name} ({count})" for name, count in unusual[:MOST_KINDS]) if unusual else ""
