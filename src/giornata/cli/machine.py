"""A name for the hardware that stays when processes come and go."""

import secrets
from pathlib import Path

from giornata.domain.errors import Fault, InvalidInput

FILE = "machine-id"


def machine_id(data: Path) -> str:
    """The machine's id, drawn once and kept in the data directory. Raises InvalidInput when that cannot be."""
    file = data / FILE
    try:
        if not file.exists():
            data.mkdir(parents=True, exist_ok=True)
            file.write_text(f"machine-{secrets.token_hex(6)}\n")
        return file.read_text().strip()
    except OSError as error:
        message = f"cannot keep the machine's id in {file}: {error.strerror}"
        raise InvalidInput([Fault(where="data", message=message, hint="give --machine-id or --data")]) from None
