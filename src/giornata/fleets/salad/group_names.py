"""The names of a fleet's container groups. The provider allows 500 replicas in one; a larger fleet has several."""

import re

MOST_GROUPS = 20
LONGEST_NAME = 63
SUFFIX = "-group-"


def group_name(base: str, number: int) -> str:
    """`loras` is the first group of the fleet, `loras-group-2` the second."""
    return base if number == 1 else f"{base}{SUFFIX}{number}"


def group_number(base: str, name: object) -> int | None:
    """Which of the fleet's groups has that name; None: it is no group of this fleet."""
    if name == base:
        return 1
    found = re.fullmatch(rf"{re.escape(base + SUFFIX)}([1-9][0-9]?)", name) if isinstance(name, str) else None
    number = int(found[1]) if found is not None else 0
    return number if 2 <= number <= MOST_GROUPS else None


def is_kept(name: str) -> bool:
    """Whether the name is kept for a further group of some fleet, so that no fleet may begin with it."""
    base, suffix, _ = name.rpartition(SUFFIX)
    return bool(suffix) and group_number(base, name) is not None


def most_groups(base: str, *, group_id: str | None) -> int:
    """How many groups a fleet may have: one where the name leaves no room for a number, or the id is given."""
    if group_id is not None or len(group_name(base, MOST_GROUPS)) > LONGEST_NAME:
        return 1
    return MOST_GROUPS
