"""The limits of texts that are kept and shown."""

import re
from collections.abc import Mapping

from giornata.domain.errors import Fault

# Tabs and line ends are text; the rest of C0 breaks terminals, and no database keeps a NUL.
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
LABEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}", re.ASCII)
LONGEST_LABEL_VALUE = 256
ID = re.compile(r"[a-z0-9_-]{1,64}", re.ASCII)


def is_id(text: str) -> bool:
    """Return True when the text could be an id of ours. Other texts are not looked up: databases refuse some."""
    return ID.fullmatch(text) is not None


def text_faults(where: str, text: str | None) -> list[Fault]:
    """Return a fault if the text holds a control character; else none."""
    found = CONTROL.search(text or "")
    if found is None:
        return []
    return [Fault(where=where, message=f"holds the control character {found[0]!r}", hint="remove it")]


def label_faults(labels: Mapping[str, str]) -> list[Fault]:
    """Return a fault for every label whose name or value is of no use for a filter."""
    faults: list[Fault] = []
    for name, value in labels.items():
        where = f"labels.{name[:63]}"
        if LABEL_NAME.fullmatch(name) is None:
            hint = "1 to 63 of A-Z a-z 0-9 . _ / -, beginning with a letter or a digit"
            faults.append(Fault(where=where, message="is not a name for a label", hint=hint))
        if len(value) > LONGEST_LABEL_VALUE:
            faults.append(Fault(where=where, message=f"is longer than {LONGEST_LABEL_VALUE} characters"))
        faults += text_faults(where, value)
    return faults
