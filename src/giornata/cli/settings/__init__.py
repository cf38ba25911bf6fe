"""Settings, saved servers and private files. Read `settings` first, then `connection`.

`giornata.cli.settings` re-exports the names of its module `settings`.
"""

from giornata.cli.settings.settings import (
    Settings,
    admin_key_of,
    default_data_directory,
    load_settings,
    oidc_client_secret_of,
    s3_credentials_of,
    storage_url,
)

__all__ = [
    "Settings",
    "admin_key_of",
    "default_data_directory",
    "load_settings",
    "oidc_client_secret_of",
    "s3_credentials_of",
    "storage_url",
]
