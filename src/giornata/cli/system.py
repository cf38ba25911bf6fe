"""The real clock, fresh names and the real inspector: what the use cases are given outside tests."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from giornata.pictures.inspection import PictureInspection, PictureLimits, inspect
from giornata.pictures.previews import make_preview

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32, in lower case
_TIME_DIGITS = 10
_RANDOM_DIGITS = 16


class SystemClock:
    """A clock that reads the operating system's time."""

    def now_ms(self) -> int:
        """Return the time in epoch milliseconds, UTC."""
        return time.time_ns() // 1_000_000


class RandomNames:
    """Identifiers in the manner of a ULID: 48 bits of time, then 80 random bits."""

    def new(self, prefix: str) -> str:
        """`job_01k…`: ordered by the time of its making; unguessable."""
        stamp = _digits(time.time_ns() // 1_000_000, _TIME_DIGITS)
        return f"{prefix}_{stamp}{_digits(secrets.randbits(5 * _RANDOM_DIGITS), _RANDOM_DIGITS)}"

    def secret(self) -> str:
        """Return a random secret of 256 bits as URL-safe text."""
        return secrets.token_urlsafe(32)

    def seed(self) -> int:
        """A non-negative number of 31 bits."""
        return secrets.randbits(31)


def _digits(number: int, count: int) -> str:
    digits = []
    for _ in range(count):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxedPictures:
    """Looks at pictures in a process of its own."""

    limits: PictureLimits

    def preview(self, path: Path) -> bytes | None:
        """Return a small JPEG of a picture that browsers do not show; None where it cannot be read."""
        return make_preview(path, limits=self.limits)

    def inspect(self, files: Sequence[tuple[str, Path]]) -> Sequence[PictureInspection]:
        """One inspection for each (name, path), in order."""
        return inspect(files, limits=self.limits)
