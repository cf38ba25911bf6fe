"""Secrets that the settings hold, or whose files they name."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from giornata.cli.settings.settings import Settings
from giornata.domain.errors import Fault, InvalidInput

if TYPE_CHECKING:
    from giornata.blobs.s3 import S3Credentials

# The form of keys of `giornata key create`: 32 random characters cannot be guessed.
ADMIN_KEY = re.compile(r"gk_[0-9a-f]{8}_[A-Za-z0-9_-]{32,200}", re.ASCII)
ADMIN_KEY_HINT = (
    "make one with: python -c 'import secrets; print(f\"gk_{secrets.token_hex(4)}_{secrets.token_urlsafe(32)}\")'"
)


def admin_key_of(settings: Settings) -> str | None:
    """The key of `admin_key`, or the one in `admin_key_file`. Raises InvalidInput, which does not repeat the key."""
    key = _secret("admin_key", settings.admin_key, settings.admin_key_file)
    if key is None:
        return None
    if ADMIN_KEY.fullmatch(key) is None:
        where = "admin_key_file" if settings.admin_key_file else "admin_key"
        message = "is not gk_, 8 hexadecimal digits, _ and 32 to 200 letters, digits, - or _"
        raise InvalidInput([Fault(where=where, message=message, hint=ADMIN_KEY_HINT)])
    return key


def oidc_client_secret_of(settings: Settings) -> str | None:
    """The client secret of the setting, or the one in its file. Raises InvalidInput."""
    file = settings.oidc_client_secret_file
    secret = _secret("oidc_client_secret", settings.oidc_client_secret, file)
    if file is not None and not secret:
        where, hint = "oidc_client_secret_file", "leave the setting out"
        raise InvalidInput([Fault(where=where, message=f"{file} is empty", hint=hint)])
    return secret


def s3_credentials_of(settings: Settings) -> "S3Credentials | None":
    """The keys that the settings hold; None leaves it to what boto3 finds by itself."""
    key_id, secret = settings.s3_access_key_id, settings.s3_secret_access_key
    if key_id is None or secret is None:
        return None
    from giornata.blobs.s3 import S3Credentials

    return S3Credentials(access_key_id=key_id, secret_access_key=secret)


def _secret(name: str, value: str | None, file: Path | None) -> str | None:
    """Return the setting's value, or what stands in the file of its companion `…_file`. Raises InvalidInput."""
    if file is None:
        return value or None
    if value:
        raise InvalidInput([Fault(where=name, message=f"{name}_file is set as well", hint="leave one out")])
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        hint = "mount the Secret there, or leave the setting out"
        raise InvalidInput(
            [Fault(where=f"{name}_file", message=f"{file} cannot be read: {error}", hint=hint)]
        ) from None
