"""The admin key that the operator gives by the settings."""

import re

from giornata.cli.settings import Settings
from giornata.domain.errors import Fault, InvalidInput

# As `giornata key create` makes them: nobody guesses 32 random characters.
GIVEN = re.compile(r"gk_[0-9a-f]{8}_[A-Za-z0-9_-]{32,200}", re.ASCII)
HINT = "make one with: python -c 'import secrets; print(f\"gk_{secrets.token_hex(4)}_{secrets.token_urlsafe(32)}\")'"


def admin_key_of(settings: Settings) -> str | None:
    """The key of `admin_key`, or the one in `admin_key_file`. Raises InvalidInput, which does not repeat the key."""
    key, file = settings.admin_key, settings.admin_key_file
    if key and file:
        raise InvalidInput([Fault(where="admin_key", message="admin_key_file is set as well", hint="leave one out")])
    where = "admin_key_file" if file else "admin_key"
    if file:
        try:
            key = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            hint = "mount the Secret there, or leave the setting out"
            raise InvalidInput([Fault(where=where, message=f"{file} cannot be read: {error}", hint=hint)]) from None
    if not key and not file:
        return None
    if GIVEN.fullmatch(key or "") is None:
        message = "is not gk_, 8 hexadecimal digits, _ and 32 to 200 letters, digits, - or _"
        raise InvalidInput([Fault(where=where, message=message, hint=HINT)])
    return key
