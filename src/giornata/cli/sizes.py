"""`20GB` to bytes."""

import re

from giornata.domain.errors import Fault, InvalidInput

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt]?)(i?)b)?", re.IGNORECASE | re.ASCII)
POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str, *, option: str) -> int:
    """Bytes: 20GB is 20·10⁹, 20GiB is 20·2³⁰, 1.5GB has a fraction, 500 are bytes. Raises InvalidInput."""
    found = SIZE.fullmatch(text.strip())
    if found is None or (found[3] and not found[2]):
        hint = f"{option} 20GB, or 20GiB"
        raise InvalidInput([Fault(where=option, message=f"{text!r} is not a size", hint=hint)])
    number, prefix, binary = found.groups(default="")
    unit: int = (1024 if binary else 1000) ** POWERS[prefix.lower()]
    return round(float(number) * unit)
