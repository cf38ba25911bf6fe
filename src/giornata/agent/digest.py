"""The sha256 of a file."""

import hashlib
from pathlib import Path


def sha256_of(path: Path) -> str:
    """64 hex digits, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
