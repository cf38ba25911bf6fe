"""Write times, sizes and sums for people."""

import re
from datetime import UTC, datetime

from giornata.domain.billing.money import parse_usd
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.jobs import Job

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400


def duration(seconds: float) -> str:
    """`0.8 s`, `42 s`, `3:07 min`, `1:02:03 h`, `3.5 d`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < MINUTE_S:
        return f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < HOUR_S:
        return f"{whole // MINUTE_S}:{whole % MINUTE_S:02d} min"
    if whole < DAY_S:
        return f"{whole // HOUR_S}:{whole % HOUR_S // MINUTE_S:02d}:{whole % MINUTE_S:02d} h"
    return f"{seconds / DAY_S:.1f} d"


def ago(then: datetime, now: datetime | None = None) -> str:
    """Return the time since that moment, in words."""
    return f"{duration(max(0.0, ((now or datetime.now(UTC)) - then).total_seconds()))} ago"


def ahead(then: datetime, now: datetime | None = None) -> str:
    """Return the time until that moment: `in 42 s`, or `now` when it is past."""
    left_s = (then - (now or datetime.now(UTC))).total_seconds()
    return f"in {duration(left_s)}" if left_s > 0 else "now"


def size(size_bytes: int) -> str:
    """Bytes with a decimal prefix."""
    value = float(size_bytes)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 job`, `3 jobs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def steps(job: Job) -> str:
    """`120/500`, or `120` when the job's kind does not say how many there are."""
    return f"{job.step}/{job.total_steps}" if job.total_steps is not None else str(job.step)


def standing(job: Job) -> str:
    """The state with what makes it understood."""
    if job.recovering:
        return "recovering"
    return f"{job.state}, in doubt" if job.suspect else str(job.state)


def micro_usd(text: str, *, where: str) -> int:
    """Convert an amount that a person wrote in USD to micro-dollars. Raises InvalidInput that names the option."""
    try:
        return parse_usd(text)
    except ValueError as error:
        raise InvalidInput([Fault(where=where, message=str(error), hint="such as 0.50")]) from None


SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?P<unit>(?P<prefix>[kmgt]?)(?P<binary>i?)b)?", re.IGNORECASE | re.ASCII)
POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str, *, option: str) -> int:
    """Bytes: 20GB is 20·10⁹, 20GiB is 20·2³⁰, 1.5GB has a fraction, 500B are bytes. Raises InvalidInput.

    A number without a unit is refused, but for 0: whoever writes 20 hardly means 20 bytes.
    """
    found, hint = SIZE.fullmatch(text.strip()), f"{option} 20GB, or 20GiB"
    if found is None or (found["binary"] and not found["prefix"]):
        raise InvalidInput([Fault(where=option, message=f"{text!r} is not a size", hint=hint)])
    number, unit, prefix, binary = found.groups(default="")
    if not unit and float(number) > 0:
        raise InvalidInput([Fault(where=option, message=f"{text!r} has no unit", hint=hint)])
    factor: int = (1024 if binary else 1000) ** POWERS[prefix.lower()]
    return round(float(number) * factor)
