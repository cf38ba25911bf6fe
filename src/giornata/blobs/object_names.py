"""Check the keys of objects, and write the file names of downloads.

Keys become paths and URLs, so they are checked before anything else.
"""

import re
from urllib.parse import quote

from giornata.domain.errors import Fault, InvalidInput

LONGEST_KEY = 512
LONGEST_PIECE = 200  # file systems allow 255 bytes, and a file that is being written has a longer name
_HINT = f"pieces of A-Z a-z 0-9 . _ - joined by /, none of them . or .., at most {LONGEST_KEY} characters"
_PIECE = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


def checked_key(key: str) -> str:
    """Return the key itself. Raises InvalidInput unless it is a safe relative path of [A-Za-z0-9._-] pieces."""
    pieces = key.split("/")
    if len(key) > LONGEST_KEY or not all(map(_safe, pieces)):
        message = f"{key[:80]!r} is not a safe object key"
        raise InvalidInput([Fault(where="key", message=message, hint=_HINT)])
    return key


def checked_prefix(prefix: str) -> str:
    """Return the prefix itself: empty, or the beginning of a safe key. Raises InvalidInput."""
    *folders, last = prefix.split("/")
    # It may stop anywhere within its last piece, even after a dot.
    checked_key("/".join((*folders, last.replace(".", "-") or "-")))
    return prefix


def _safe(piece: str) -> bool:
    return _PIECE.fullmatch(piece) is not None and piece not in {".", ".."} and len(piece) <= LONGEST_PIECE


# attr-char of RFC 5987, besides letters and digits.
_ATTR_CHARS = "!#$&+-.^_`|~"


def attachment(filename: str) -> str:
    """Return `attachment` with the name twice: in ASCII for old clients, and whole (RFC 6266, RFC 5987).

    Control characters, quotes, backslashes and path separators never reach the quoted form.
    """
    plain = "".join(char if _plain(char) else "_" for char in filename)
    whole = filename.encode("utf-8", "replace")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(whole, safe=_ATTR_CHARS)}"


def _plain(char: str) -> bool:
    return " " <= char <= "~" and char not in '"\\/%'
