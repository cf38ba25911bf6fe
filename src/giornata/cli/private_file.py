"""Files that only their owner may read."""

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    aside = path.with_suffix(path.suffix + ".new")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, 0o600)  # a file that was there kept its mode
        file.write(text)
    aside.replace(path)
