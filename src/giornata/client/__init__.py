"""The Python SDK over HTTP."""

from giornata.client.client import Client
from giornata.client.connection import Backoff
from giornata.client.uploads import UploadedFile

__all__ = ["Backoff", "Client", "UploadedFile"]
