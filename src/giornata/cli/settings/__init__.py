"""Settings, saved servers and private files. Read `settings` first, then `connection`.

`giornata.cli.settings` re-exports the names of its modules `settings` and `configured_secrets`.
"""

from giornata.cli.settings.configured_secrets import admin_key_of, oidc_client_secret_of, s3_credentials_of
from giornata.cli.settings.settings import Settings, default_data_directory, load_settings, storage_url

__all__ = [
    "Settings",
    "admin_key_of",
    "default_data_directory",
    "load_settings",
    "oidc_client_secret_of",
    "s3_credentials_of",
    "storage_url",
]
