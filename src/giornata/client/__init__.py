"""The Python SDK over HTTP. Read `client` first, then `storage.transfer`."""

from giornata.client.client import STANDS_STILL, Client
from giornata.client.retry import Backoff
from giornata.client.storage.uploads import UploadedFile

__all__ = ["STANDS_STILL", "Backoff", "Client", "UploadedFile"]
