"""`20GB` to bytes."""

import re

from giornata.domain.errors import Fault, InvalidInput

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
