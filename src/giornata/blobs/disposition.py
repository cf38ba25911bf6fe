"""The Content-Disposition header."""

from urllib.parse import quote

# attr-char of RFC 5987, besides letters and digits.
_ATTR_CHARS = "!#$&+-.^_`|~"


def attachment(filename: str) -> str:
    """`attachment` with the name twice: in ASCII for old clients, and whole (RFC 6266, RFC 5987).

    Control characters, quotes, backslashes and path separators never reach the quoted form.
    """
    plain = "".join(char if _plain(char) else "_" for char in filename)
    whole = filename.encode("utf-8", "replace")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(whole, safe=_ATTR_CHARS)}"


def _plain(char: str) -> bool:
    return " " <= char <= "~" and char not in '"\\/%'
