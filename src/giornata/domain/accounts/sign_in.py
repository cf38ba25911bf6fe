"""Signing in: the pauses after failures, addresses that may have an account, and where a browser goes afterwards."""

import re
from collections.abc import Collection

FREE_FAILURES = 4
FIRST_PAUSE_S = 1
LONGEST_PAUSE_S = 900
# A path of this server: no second slash or backslash, with which a browser would go to another host.
LOCAL_PATH = re.compile(r"/(?![/\\])[A-Za-z0-9._~!$&'()*+,;=:@%/?-]{0,500}", re.ASCII)
START_PATH = "/sign-in"


def pause_after_s(failures: int) -> int:
    """Return the pause after so many failures in a row: none at first, then 1, 2, 4 … seconds, 15 minutes at most."""
    over = failures - FREE_FAILURES
    if over <= 0:
        return 0
    doublings = min(over - 1, LONGEST_PAUSE_S.bit_length())
    return min(FIRST_PAUSE_S << doublings, LONGEST_PAUSE_S)


def is_allowed_email(email: str, domains: Collection[str]) -> bool:
    """Return True for an address in one of these domains, and for every address when there are none.

    A domain has to be equal: `example.com` allows no address of `sub.example.com`.
    """
    _, at, domain = email.rpartition("@")
    allowed = {each.lower().removeprefix("@") for each in domains}
    return not allowed or (at == "@" and domain.lower() in allowed)


def local_path(asked: str | None) -> str:
    """Return the path if it is one of this server's, else START_PATH: no sign-in leads a person to another site."""
    return asked if asked is not None and LOCAL_PATH.fullmatch(asked) else START_PATH
