"""The Python SDK over HTTP. Read `client` first, then `storage.transfer`.

`Client` is imported when it is first used: agents and the help of commands use single modules of this package.
"""

import importlib
from typing import TYPE_CHECKING, Any

from giornata.client.retry import Backoff
from giornata.domain.jobs.job import STANDS_STILL

if TYPE_CHECKING:
    from giornata.client.client import Client
    from giornata.client.storage.uploads import UploadedFile

__all__ = ["STANDS_STILL", "Backoff", "Client", "UploadedFile"]

_MODULES = {"Client": "giornata.client.client", "UploadedFile": "giornata.client.storage.uploads"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
