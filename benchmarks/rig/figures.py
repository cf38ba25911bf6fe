"""Percentiles, tables, and the line of JSON at the end."""

import json
import math
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def latencies_ms(values_s: Sequence[float]) -> dict[str, float]:
    """p50, p95, p99 and the longest, in milliseconds."""
    if not values_s:
        return {}
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {name: round(percentile(values_s, share) * 1000, 2) for name, share in shares.items()}


def spread(values: Sequence[float], digits: int = 2) -> dict[str, float]:
    """Median, least and greatest of the repetitions."""
    chosen = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits) for name, value in chosen.items()}


def spread_words(spread: Mapping[str, float]) -> str:
    """`12.3 (11.0 to 14.1)`."""
    return f"{spread['median']:g} ({spread['min']:g} to {spread['max']:g})"


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_bytes / 2**30, 1),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def conclude(result: Mapping[str, object]) -> None:
    """The last line of a benchmark."""
    print(json.dumps(result))
