"""What a key may look like. Keys become paths and URLs, so they are checked before anything else."""

import re

from giornata.domain.errors import Fault, InvalidInput

LONGEST_KEY = 512
LONGEST_PIECE = 200  # file systems allow 255 bytes, and a file that is being written has a longer name
_HINT = f"pieces of A-Z a-z 0-9 . _ - joined by /, none of them . or .., at most {LONGEST_KEY} characters"
_PIECE = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


def checked_key(key: str) -> str:
    """The key itself. Raises InvalidInput unless it is a safe relative path of [A-Za-z0-9._-] pieces."""
    pieces = key.split("/")
    if len(key) > LONGEST_KEY or not all(map(_safe, pieces)):
        message = f"{key[:80]!r} is not a safe object key"
        raise InvalidInput([Fault(where="key", message=message, hint=_HINT)])
    return key


def checked_prefix(prefix: str) -> str:
    """The prefix itself: empty, or the beginning of a safe key. Raises InvalidInput."""
    *folders, last = prefix.split("/")
    # It may stop anywhere within its last piece, even after a dot.
    checked_key("/".join((*folders, last.replace(".", "-") or "-")))
    return prefix


def _safe(piece: str) -> bool:
    return _PIECE.fullmatch(piece) is not None and piece not in {".", ".."} and len(piece) <= LONGEST_PIECE
