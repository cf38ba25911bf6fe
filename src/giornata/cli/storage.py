"""Storage as people name it on the command line."""

from pathlib import Path
from typing import TYPE_CHECKING

from giornata.cli.settings import Settings

if TYPE_CHECKING:
    from giornata.blobs.s3 import S3Credentials


def s3_credentials_of(settings: Settings) -> "S3Credentials | None":
    """The keys that the settings hold; None leaves it to what boto3 finds by itself."""
    key_id, secret = settings.s3_access_key_id, settings.s3_secret_access_key
    if key_id is None or secret is None:
        return None
    from giornata.blobs.s3 import S3Credentials

    return S3Credentials(access_key_id=key_id, secret_access_key=secret)


def storage_url(place: str) -> str:
    """A URL as it is, a folder as a `file:` URL."""
    return place if "://" in place else Path(place).expanduser().resolve().as_uri()
